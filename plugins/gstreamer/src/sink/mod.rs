//! `airdmasink`: sends frames to a receiver.

mod imp;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    pub(crate) struct AirdmaSink(ObjectSubclass<imp::Imp>)
        @extends gst_base::BaseSink, gst::Element, gst::Object;
}

pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    let (rank, kind) = (gst::Rank::NONE, AirdmaSink::static_type());
    gst::Element::register(Some(plugin), "airdmasink", rank, kind)
}
