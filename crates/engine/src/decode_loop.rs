//! The decoding thread.

use std::sync::{Arc, mpsc};

use crate::EngineError;
use crate::model::Model;
use crate::scheduler::Limits;
use crate::threads::Threads;
use crate::tuning::DecoderSettings;
use crate::worker::{Message, SharedStatus, Worker};

/// Computes all requests, on the thread that calls `run`.
pub struct DecodeLoop {
    pub(crate) model: Arc<Model>,
    pub(crate) decoder: DecoderSettings,
    pub(crate) limits: Limits,
    pub(crate) requests: mpsc::Receiver<Message>,
    pub(crate) status: SharedStatus,
}

impl DecodeLoop {
    /// Runs until the frontend is dropped.
    ///
    /// Must be called on the thread that loaded the model. libgomp starts worker threads for every thread that
    /// computes, and puts all of them to sleep between steps once there are more of them than CPUs. Decoding one
    /// sequence then takes twice as long.
    pub fn run(self) -> Result<(), EngineError> {
        let decoder = self.model.decoder(self.limits.shape(), self.decoder)?;
        let threads = Threads::new(self.decoder.threads);
        let worker = Worker::new(&self.model, decoder, threads, self.limits, self.requests, self.status);
        worker.run().map_err(|error| EngineError::Decode(error.to_string()))
    }
}
