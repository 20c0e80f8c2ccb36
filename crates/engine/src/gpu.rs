//! Which GPUs compute, how many layers of a model they get, and how many cells fit beside them. Pure, except for the
//! driver's list of devices.

use std::fmt;

use kernels::WeightsForm;
use llama_cpp_2::{LlamaBackendDeviceType, list_llama_ggml_backend_devices};

use crate::weights::WeightsChoice;

/// Which GPUs may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuChoice {
    /// All GPUs, if at least one layer of the model fits.
    Auto,
    Off,
    /// The GPU of that name.
    Device(String),
    /// This number of layers, even if they may not fit.
    Layers(u32),
}

/// An available GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// llama.cpp's device index.
    pub(crate) index: usize,
    /// For example CUDA0.
    pub name: String,
    /// For example NVIDIA H200.
    pub description: String,
    /// In bytes.
    pub free: u64,
    pub total: u64,
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gibibytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (free, total) = (gibibytes(self.free), gibibytes(self.total));
        write!(f, "{} ({}, {free:.1} of {total:.1} GiB free)", self.description, self.name)
    }
}

/// How many layers of a model are on which GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Never empty.
    pub cards: Vec<Card>,
    /// Layers on the cards, of `all_layers`. Both include the output layer.
    pub layers: u32,
    pub all_layers: u32,
    /// Cells that fit on the cards, whose layers hold a part of each cell.
    pub(crate) max_cells: usize,
    /// The maximum of tokens in a step.
    pub(crate) step: usize,
    /// Another form of the weights that may be faster and fits.
    pub(crate) tried_form: Option<WeightsForm>,
}

impl Placement {
    /// Whether the CPUs only sample.
    pub fn is_whole(&self) -> bool {
        self.layers == self.all_layers
    }

    /// Leaves more memory for everything else. False if too few cells are left.
    pub(crate) fn halve_cells(&mut self) -> bool {
        self.max_cells /= 2;
        self.max_cells >= LEAST_CELLS
    }

    /// The memory of all cards, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.cards.iter().map(|card| card.total).sum()
    }

    /// What speed depends on, as a text: part of a tuning's key.
    pub(crate) fn kind(&self) -> String {
        let cards: Vec<_> = self.cards.iter().map(|card| card.description.as_str()).collect();
        format!("{}, {}", cards.join(", "), if self.is_whole() { "everything" } else { "a part" })
    }

    pub(crate) fn indices(&self) -> Vec<usize> {
        self.cards.iter().map(|card| card.index).collect()
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards: Vec<_> = self.cards.iter().map(ToString::to_string).collect();
        write!(f, "{} of {} layers on {}", self.layers, self.all_layers, cards.join(" and "))
    }
}

/// The properties of a model that its placement depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModelSize {
    pub(crate) bytes: u64,
    /// The number of weights.
    pub(crate) parameters: u64,
    /// Without the output layer.
    pub(crate) layers: u32,
    /// Of a cell in all layers.
    pub(crate) cell_bytes: u64,
    /// Tokens that one request may have.
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
}

impl ModelSize {
    /// With its weights in another form.
    pub(crate) fn in_form(self, form: WeightsForm) -> Self {
        let bytes_of_32 = match form {
            WeightsForm::Q8_0 => 34,
            WeightsForm::Bf16 => 64,
        };
        Self { bytes: self.parameters * bytes_of_32 / 32, ..self }
    }

    /// With 16 bits per weight, unless it has them. Nothing is lost: weights of at most 8 bits were rounded more.
    fn in_16_bits(self) -> Option<Self> {
        let wide = self.in_form(WeightsForm::Bf16);
        (self.bytes < wide.bytes / 3 * 2).then_some(wide)
    }
}

/// Memory of a card that is left to other programs, such as the display's.
const MIN_LEFT: u64 = 256 << 20;
const LEFT_FRACTION: u64 = 16;
/// Memory for activations and drivers.
const SCRATCH: u64 = 256 << 20;
/// Large steps are faster on a card, but the scores of all tokens of a step need memory.
const STEPS: [usize; 3] = [2048, 1024, 512];
const MAX_SCORES_FRACTION: u64 = 8;
/// More cells than this bring no benefit by default.
const DEFAULT_MAX_CELLS: usize = 65_536;
const MIN_CELLS: usize = 4096;
/// With fewer cells than this, the GPU is not used.
const LEAST_CELLS: usize = 1024;

/// Decides how many layers of a model go to which GPUs, and in which form. `None` if there is no GPU, or none is to be
/// used; an error says why none is used although `engine.gpu` allows one.
pub(crate) fn place(
    choice: &GpuChoice,
    cards: &[Card],
    model: ModelSize,
    weights: WeightsChoice,
) -> Result<Option<Placement>, String> {
    if let Some(form) = weights.wanted_form() {
        return place_as_it_is(choice, cards, model.in_form(form));
    }
    let placed = place_as_it_is(choice, cards, model)?;
    let wide = model.in_16_bits().filter(|_| weights == WeightsChoice::Auto);
    match (wide.map(|wide| place_as_it_is(choice, cards, wide)), placed) {
        (Some(Ok(Some(wide))), Some(placed)) if wide.is_whole() && wide.max_cells == placed.max_cells => {
            Ok(Some(Placement { tried_form: Some(WeightsForm::Bf16), ..wide }))
        }
        (_, placed) => Ok(placed),
    }
}

fn place_as_it_is(choice: &GpuChoice, cards: &[Card], model: ModelSize) -> Result<Option<Placement>, String> {
    let cards: Vec<Card> = match choice {
        GpuChoice::Off => return Ok(None),
        GpuChoice::Auto | GpuChoice::Layers(_) => cards.to_vec(),
        GpuChoice::Device(name) => {
            let named = cards.iter().filter(|card| card.name.eq_ignore_ascii_case(name)).cloned();
            let named: Vec<_> = named.collect();
            if cards.is_empty() {
                return Err(format!("engine.gpu is {name}, but there is no GPU"));
            }
            if named.is_empty() {
                let available: Vec<_> = cards.iter().map(|card| card.name.as_str()).collect();
                return Err(format!("engine.gpu is {name}, but the available GPUs are {}", available.join(", ")));
            }
            named
        }
    };
    if cards.is_empty() || *choice == GpuChoice::Layers(0) {
        return Ok(None);
    }
    let usable = |card: &Card| card.free.saturating_sub(MIN_LEFT.max(card.total / LEFT_FRACTION));
    let smallest = cards.iter().map(usable).min().unwrap_or(0);
    let scores = |step: usize| step as u64 * model.vocabulary as u64 * 4;
    let step = STEPS.into_iter().find(|step| scores(*step) <= smallest / MAX_SCORES_FRACTION);
    let step = step.unwrap_or(STEPS[STEPS.len() - 1]);
    let usable: u64 = cards.iter().map(|card| usable(card).saturating_sub(SCRATCH + scores(step))).sum();

    let all_layers = model.layers + 1;
    let min_cells = model.context.min(MIN_CELLS);
    let with_cells = model.bytes + min_cells as u64 * model.cell_bytes;
    let per_layer = with_cells.div_ceil(u64::from(all_layers)).max(1);
    let fitting = u32::try_from(usable / per_layer).unwrap_or(u32::MAX).min(all_layers);
    let layers = match choice {
        GpuChoice::Layers(wanted) => (*wanted).min(all_layers),
        _ => fitting,
    };
    if layers == 0 {
        let cards: Vec<_> = cards.iter().map(ToString::to_string).collect();
        return Err(format!("no layer of the model fits into the free memory of {}", cards.join(" and ")));
    }
    let part = |whole: u64| (whole * u64::from(layers)).div_ceil(u64::from(all_layers));
    let cells = usable.saturating_sub(part(model.bytes)) / part(model.cell_bytes).max(1);
    let cells = usize::try_from(cells).unwrap_or(usize::MAX);
    let max_cells = cells.clamp(min_cells, DEFAULT_MAX_CELLS.max(model.context));
    Ok(Some(Placement { cards, layers, all_layers, max_cells, step, tried_form: None }))
}

/// The available GPUs. If several libraries drive them, those of the first of CUDA, ROCm and Vulkan.
pub(crate) fn cards() -> Vec<Card> {
    let devices = list_llama_ggml_backend_devices();
    let of_kind = |kind: LlamaBackendDeviceType, backend: &str| -> Vec<Card> {
        let found = devices.iter().filter(|device| device.device_type == kind && device.backend == backend);
        let card = |device: &llama_cpp_2::LlamaBackendDevice| Card {
            index: device.index,
            name: device.name.clone(),
            description: device.description.clone(),
            free: device.memory_free as u64,
            total: device.memory_total as u64,
        };
        found.map(card).collect()
    };
    let kinds = [LlamaBackendDeviceType::Gpu, LlamaBackendDeviceType::IntegratedGpu];
    let all = kinds.into_iter().flat_map(|kind| ["CUDA", "ROCm", "Vulkan"].map(|backend| of_kind(kind, backend)));
    all.into_iter().find(|cards| !cards.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn card(name: &str, free: u64, total: u64) -> Card {
        Card { index: 0, name: name.into(), description: "A card".into(), free, total }
    }

    /// About an 8B model in 4 bits.
    const LARGE: ModelSize = ModelSize {
        bytes: 5 * GIB,
        parameters: 8_000_000_000,
        layers: 32,
        cell_bytes: 131_072,
        context: 131_072,
        vocabulary: 128_256,
    };
    const SMALL: ModelSize = ModelSize {
        bytes: GIB / 10,
        parameters: 135_000_000,
        layers: 30,
        cell_bytes: 23_040,
        context: 8192,
        vocabulary: 49_152,
    };

    fn place(choice: &GpuChoice, cards: &[Card], model: ModelSize) -> Result<Option<Placement>, String> {
        super::place(choice, cards, model, WeightsChoice::File)
    }

    #[test]
    fn models_are_tried_in_16_bits_where_there_is_room() {
        let tried = |free, model, weights| {
            let placed = super::place(&GpuChoice::Auto, &[card("CUDA0", free, 8 * GIB)], model, weights);
            placed.unwrap().unwrap().tried_form
        };
        assert_eq!(tried(7 * GIB, SMALL, WeightsChoice::Auto), Some(WeightsForm::Bf16));
        assert_eq!(tried(7 * GIB, SMALL, WeightsChoice::File), None);
        assert_eq!(tried(7 * GIB, LARGE, WeightsChoice::Auto), None, "it would leave room for fewer cells");
        let is_wide = ModelSize { bytes: 2 * SMALL.parameters, ..SMALL };
        assert_eq!(tried(7 * GIB, is_wide, WeightsChoice::Auto), None, "it has 16 bits already");
        // The free memory: the part left to other programs, scratch memory and scores, cells, and some of the weights.
        let cells = MIN_CELLS as u64 * SMALL.cell_bytes;
        let tight = GIB / 2 + SCRATCH + 512 * 49_152 * 4 + cells + 2 * SMALL.bytes;
        assert_eq!(tried(tight, SMALL, WeightsChoice::Auto), None, "it does not fit");
        let form = super::place(&GpuChoice::Auto, &[card("CUDA0", tight, 8 * GIB)], SMALL, WeightsChoice::Bf16);
        assert!(!form.unwrap().unwrap().is_whole(), "a required form is placed by its own size");
    }

    #[test]
    fn a_model_that_fits_is_placed_on_the_card_as_a_whole() {
        let placed = place(&GpuChoice::Auto, &[card("CUDA0", 138 * GIB, 140 * GIB)], LARGE).unwrap().unwrap();
        assert!(placed.is_whole());
        assert_eq!((placed.layers, placed.step, placed.max_cells), (33, 2048, 131_072));
        let placed = place(&GpuChoice::Auto, &[card("CUDA0", 7 * GIB, 8 * GIB)], SMALL).unwrap().unwrap();
        assert_eq!((placed.layers, placed.max_cells), (31, 65_536));
    }

    #[test]
    fn a_model_that_does_not_fit_is_placed_in_part() {
        let placed = place(&GpuChoice::Auto, &[card("CUDA0", 4 * GIB, 4 * GIB)], LARGE).unwrap().unwrap();
        assert!((15..25).contains(&placed.layers), "{placed}");
        assert!((MIN_CELLS..2 * MIN_CELLS).contains(&placed.max_cells), "{placed:?}");
        let two = [card("CUDA0", 4 * GIB, 4 * GIB), card("CUDA1", 4 * GIB, 4 * GIB)];
        assert!(place(&GpuChoice::Auto, &two, LARGE).unwrap().unwrap().is_whole());
    }

    #[test]
    fn a_card_without_free_memory_is_not_used_and_the_reason_is_reported() {
        let reason = place(&GpuChoice::Auto, &[card("CUDA0", GIB / 4, 8 * GIB)], LARGE).unwrap_err();
        assert_eq!(reason, "no layer of the model fits into the free memory of A card (CUDA0, 0.2 of 8.0 GiB free)");
    }

    #[test]
    fn a_device_is_chosen_by_its_name() {
        let two = [card("CUDA0", 8 * GIB, 8 * GIB), card("CUDA1", 8 * GIB, 8 * GIB)];
        let named = |name: &str| place(&GpuChoice::Device(name.into()), &two, SMALL);
        assert_eq!(named("cuda1").unwrap().unwrap().cards, [two[1].clone()]);
        let unknown = named("Vulkan0").unwrap_err();
        assert_eq!(unknown, "engine.gpu is Vulkan0, but the available GPUs are CUDA0, CUDA1");
        let none = place(&GpuChoice::Device("CUDA0".into()), &[], SMALL).unwrap_err();
        assert_eq!(none, "engine.gpu is CUDA0, but there is no GPU");
    }

    #[test]
    fn the_requested_number_of_layers_is_placed() {
        let one = [card("CUDA0", 8 * GIB, 8 * GIB)];
        let layers = |wanted| place(&GpuChoice::Layers(wanted), &one, SMALL).unwrap().map(|placed| placed.layers);
        assert_eq!((layers(0), layers(7), layers(99)), (None, Some(7), Some(31)));
        assert_eq!(place(&GpuChoice::Off, &one, SMALL), Ok(None));
        assert_eq!(place(&GpuChoice::Auto, &[], SMALL), Ok(None));
    }

    proptest! {
        #[test]
        fn a_placement_fits_and_leaves_memory_to_other_programs(
            free in prop_oneof![0..4 * GIB, 0..200 * GIB],
            taken in 0..8 * GIB,
            bytes in prop_oneof![GIB / 64..GIB, GIB / 10..100 * GIB],
            bits in 2_u64..17,
            weights in prop::sample::select(&[
                WeightsChoice::File,
                WeightsChoice::Auto,
                WeightsChoice::Q8_0,
                WeightsChoice::Bf16,
            ][..]),
            layers in 1_u32..128,
            cell_bytes in 1024_u64..1 << 20,
            context in 256_usize..200_000,
            vocabulary in 256_usize..260_000,
        ) {
            let model = ModelSize { bytes, parameters: bytes * 8 / bits, layers, cell_bytes, context, vocabulary };
            let cards = [card("CUDA0", free, free + taken)];
            if let Ok(Some(placed)) = super::place(&GpuChoice::Auto, &cards, model, weights) {
                let form = weights.wanted_form().or(placed.tried_form);
                let bytes = form.map_or(bytes, |form| model.in_form(form).bytes);
                let part = |whole: u64| whole * u64::from(placed.layers) / u64::from(placed.all_layers);
                let cells = placed.max_cells as u64;
                let needed = part(bytes) + cells * part(cell_bytes) + placed.step as u64 * vocabulary as u64 * 4;
                prop_assert!(needed + MIN_LEFT <= free, "{placed}: {needed}");
            }
        }
    }
}
