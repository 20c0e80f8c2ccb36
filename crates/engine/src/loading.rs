//! Loads a model: onto GPUs if there are any, with the tuning and the weights that are fastest on this machine.

use std::path::Path;
use std::sync::Arc;

use kernels::WeightsForm;
use parking_lot::Mutex;

use crate::gpu::{self, GpuChoice, Placement};
use crate::model::{self, Model, ModelError};
use crate::template::ChatTemplate;
use crate::tuning::{self, Key, Tuning, TuningFile};
use crate::weights::{Converted, WeightsChoice};
use crate::{Engine, EngineError, Progress, Settings};

impl Engine {
    /// Loads a model. Tunes it if there is no tuning for it and this machine yet, or if `again` is set.
    pub fn load(
        settings: Settings,
        again: bool,
        progress: impl Progress + Send + 'static,
    ) -> Result<Self, EngineError> {
        let progress = Arc::new(Mutex::new(progress));
        if let Some(mut placement) = placement(&settings)? {
            loop {
                match Self::load_to(settings.clone(), Some(placement.clone()), again, &progress) {
                    Err(EngineError::Model(reason @ ModelError::NoMemory(..))) if placement.halve_cells() => {
                        tracing::warn!(%reason, cells = placement.max_cells, "fewer cells are tried");
                    }
                    Err(EngineError::Model(reason @ (ModelError::NoMemory(..) | ModelError::NotLoadable(..)))) => {
                        tracing::warn!(%reason, "the GPU is not used");
                        break;
                    }
                    loaded => return loaded,
                }
            }
        }
        Self::load_to(settings, None, again, &progress)
    }

    fn load_to(
        settings: Settings,
        placement: Option<Placement>,
        again: bool,
        progress: &Arc<Mutex<impl Progress + Send + 'static>>,
    ) -> Result<Self, EngineError> {
        let load = |path: &Path| {
            let report = progress.clone();
            let model = Model::load(path, placement.as_ref(), move |done| report.lock().loading(done)).map(Arc::new)?;
            let template = ChatTemplate::new(model.clone())?; // fails before any longer work
            Ok((model, template))
        };
        let unwritable = |error| EngineError::Tuning(settings.data_dir.display().to_string(), error);
        let mut file = TuningFile::read(&settings.data_dir);
        let key = Key::new(&settings.model, settings.options(placement.as_ref()))
            .map_err(|error| ModelError::Unreadable(settings.model.display().to_string(), error))?;
        let kept =
            file.find(&key).filter(|kept| !again && kept.copy.as_ref().is_none_or(Converted::is_intact)).cloned();
        let tuned_now = kept.is_none();
        let ((model, template), tuning) = match kept {
            Some(tuning) => {
                let path = tuning.copy.as_ref().map_or(&settings.model, |copy| &copy.path);
                (load(path)?, tuning)
            }
            None => {
                let tried = placement.as_ref().and_then(|placement| placement.tried_form);
                let (model, tuning) = tune(&settings, key, tried, &file, &load, progress)?;
                file.store(tuning.clone()).map_err(unwritable)?;
                (model, tuning)
            }
        };
        let engine = Self { settings, placement, model, template, tuning, tuned_now };
        if engine.placement.is_some() {
            engine.model.decoder(engine.limits().shape(), engine.tuning.choice)?; // while CPUs can still take over
        } else if !tuned_now {
            engine.model.lay_out(engine.tuning.choice)?; // before free memory is measured
        }
        Ok(engine)
    }
}

type Loaded = (Arc<Model>, ChatTemplate);

/// Finds GPUs, and logs the reason if one is not used.
fn placement(settings: &Settings) -> Result<Option<Placement>, ModelError> {
    if settings.gpu == GpuChoice::Off {
        return Ok(None);
    }
    model::backend()?; // the CPU's kernels are always needed
    for refused in kernels::load_for_gpus() {
        tracing::warn!("{refused}");
    }
    let cards = gpu::cards();
    if cards.is_empty() && !matches!(settings.gpu, GpuChoice::Device(_)) {
        return Ok(None);
    }
    let placed = gpu::place(&settings.gpu, &cards, Model::size(&settings.model)?, settings.weights);
    Ok(placed.unwrap_or_else(|reason| {
        tracing::warn!("the CPU computes: {reason}");
        None
    }))
}

/// Tunes a model, and tries its weights in another form where that may be faster. Returns the faster one.
fn tune(
    settings: &Settings,
    key: Key,
    tried: Option<WeightsForm>,
    known: &TuningFile,
    load: &dyn Fn(&Path) -> Result<Loaded, ModelError>,
    progress: &Mutex<impl Progress>,
) -> Result<(Loaded, Tuning), EngineError> {
    let Settings { model, data_dir, .. } = settings;
    // Leaves as much disk space as the copy takes, unless the settings require the copy.
    let make = |form, is_required: bool| {
        if let Some(copy) = known.copies(&key).find(|copy| copy.is_of(model, data_dir, form)) {
            return Ok(copy.clone());
        }
        let bytes = Model::size(model).map_err(std::io::Error::other)?.in_form(form).bytes;
        progress.lock().converting(bytes);
        Converted::make(model, data_dir, form, bytes, if is_required { 0 } else { bytes })
    };
    if let Some(form) = key.options.weights.wanted_form() {
        let copy = make(form, true).map_err(EngineError::Weights)?;
        let loaded = load(&copy.path)?;
        loaded.0.try_cells()?;
        let tuning = tuning::tune(&loaded.0, key, &mut *progress.lock());
        return Ok((loaded, Tuning { copy: Some(copy), ..tuning }));
    }
    let loaded = load(model)?;
    loaded.0.try_cells()?;
    let mut tuning = tuning::tune(&loaded.0, key.clone(), &mut *progress.lock());
    let Some(tried) = tried.filter(|_| key.options.weights == WeightsChoice::Auto) else {
        return Ok((loaded, tuning));
    };
    let copy = match make(tried, false) {
        Ok(copy) => copy,
        Err(error) => {
            // For example into a read-only folder. The next start tries again.
            tracing::warn!(%error, "the weights were not tried in another form");
            tuning.key.options.weights = WeightsChoice::File;
            return Ok((loaded, tuning));
        }
    };
    drop(loaded); // a card need not have room for both
    match load(&copy.path) {
        Ok(copied) => {
            if let Some(faster) = tuning::with_faster(&copied.0, &tuning) {
                return Ok((copied, Tuning { copy: Some(copy), ..faster }));
            }
        }
        Err(error) => tracing::warn!(%error, "the weights in another form cannot be loaded"),
    }
    copy.remove();
    Ok((load(model)?, tuning))
}
