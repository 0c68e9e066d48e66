//! `airdmasrc`: receives the frames of one device.

mod imp;

use gst::glib;
use gst::prelude::*;

glib::wrapper! {
    pub(crate) struct AirdmaSrc(ObjectSubclass<imp::Imp>)
        @extends gst_base::PushSrc, gst_base::BaseSrc, gst::Element, gst::Object;
}

pub(crate) fn register(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    let (rank, kind) = (gst::Rank::NONE, AirdmaSrc::static_type());
    gst::Element::register(Some(plugin), "airdmasrc", rank, kind)
}
