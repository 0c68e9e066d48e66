//! Rate control in virtual time: throughput over lines, queues and receivers that change.

mod flows;
mod marks;
mod orchestrator;
mod path;
mod wifi;
