//! Rate control in virtual time: what a sender gets out of lines, queues and receivers that change under it.

mod flows;
mod marks;
mod orchestrator;
mod path;
mod wifi;
