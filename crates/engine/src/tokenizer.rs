//! Turns requests into prompts on a separate thread, in turns by tag, and sends them to the decode loop.
//!
//! Templating and tokenizing take longer than a small request's whole completion. So they delay neither health checks
//! nor decoding, and one tag's large prompts hardly delay another's: a turn is a few milliseconds long. A request whose
//! client is gone is dropped.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use chat::ChatRequest;
use parking_lot::{Condvar, Mutex};

use crate::queue::Tag;
use crate::scheduler;
use crate::template::{ChatTemplate, UnfinishedPrompt};
use crate::turns::Turns;
use crate::worker::{Inbox, Message, PendingCompletion, RefusalError, Respond, SharedStatus};

/// Some vocabularies' regular expressions recurse for every character of a text. Only the used part takes memory.
const STACK_BYTES: usize = 64 << 20;

/// Tokens of a prompt that is too long are counted up to this many contexts. Longer ones are reported as "at least".
const MAX_COUNTED_CONTEXTS: usize = 2;

/// A request that is to be tokenized.
pub(crate) struct Job {
    pub(crate) request: ChatRequest,
    pub(crate) tag: Tag,
    /// It is dropped at this time if it has not started.
    pub(crate) deadline: Instant,
    pub(crate) respond_to: Respond,
}

struct UnfinishedJob {
    job: Job,
    /// `None` before its first turn.
    prompt: Option<UnfinishedPrompt>,
}

/// The queue in front of the thread. Dropping it ends the thread.
pub(crate) struct Tokenizer(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    status: SharedStatus,
}

struct State {
    turns: Turns<UnfinishedJob>,
    is_closed: bool,
}

impl Tokenizer {
    /// Prompts are sent to the inbox. `context` is the limit of a prompt and its completion together, in tokens.
    pub(crate) fn start(
        template: Arc<ChatTemplate>,
        context: usize,
        max_queued: usize,
        inbox: Inbox,
        status: SharedStatus,
    ) -> std::io::Result<Self> {
        let state = Mutex::new(State { turns: Turns::new(max_queued), is_closed: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new(), status });
        let thread = TokenizerThread { shared: shared.clone(), template, context, inbox };
        thread::Builder::new().name("tokenizer".into()).stack_size(STACK_BYTES).spawn(move || thread.run())?;
        Ok(Self(shared))
    }

    /// Queues a request. If the queue is full, refuses a request: this one, or another of a tag that has more.
    pub(crate) fn push(&self, job: Job) {
        let rejected = {
            let mut state = self.0.state.lock();
            state.turns.queue.push(job.tag.clone(), UnfinishedJob { job, prompt: None })
        };
        self.0.changed.notify_one();
        if let Some(rejected) = rejected {
            refuse(rejected.job.respond_to, RefusalError::NoCapacity);
        }
    }
}

impl Drop for Tokenizer {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

struct TokenizerThread {
    shared: Arc<Shared>,
    template: Arc<ChatTemplate>,
    context: usize,
    inbox: Inbox,
}

impl TokenizerThread {
    fn run(self) {
        while let Some((tag, job)) = self.next_turn() {
            let turn = std::panic::catch_unwind(AssertUnwindSafe(|| self.work(job)));
            // After a panic the job is gone, and its client gets an error because the channel is closed.
            let (cost, unfinished) = turn.unwrap_or((0, None));
            let mut state = self.shared.state.lock();
            state.turns.charge(&tag, cost);
            if let Some(job) = unfinished {
                state.turns.queue.put_back(tag, job); // it continues in its key's next turn
            }
        }
    }

    /// Waits for the next turn. Drops requests whose client is gone or whose deadline has passed. `None` once the tokenizer
    /// is closed.
    fn next_turn(&self) -> Option<(Tag, UnfinishedJob)> {
        let mut state = self.shared.state.lock();
        loop {
            let now = Instant::now();
            let is_over = |job: &UnfinishedJob| job.job.respond_to.is_closed() || job.job.deadline <= now;
            for over in state.turns.queue.remove_if(is_over) {
                if over.job.respond_to.is_closed() {
                    self.shared.status.lock().cancelled += 1;
                }
                refuse(over.job.respond_to, RefusalError::NoCapacity);
            }
            let next = state.turns.take();
            self.shared.status.lock().tokenizing = state.turns.queue.len() + usize::from(next.is_some());
            if next.is_some() || state.is_closed {
                return next.filter(|_| !state.is_closed);
            }
            self.shared.changed.wait(&mut state);
        }
    }

    /// Does one turn of a job, and returns its cost. Returns the job if it has work left.
    fn work(&self, UnfinishedJob { job, prompt }: UnfinishedJob) -> (usize, Option<UnfinishedJob>) {
        let (rendering, prompt) = match prompt {
            Some(prompt) => (0, Ok(prompt)),
            None => (ChatTemplate::rendering_cost(&job.request), self.template.prompt(&job.request)),
        };
        let mut prompt = match prompt {
            Ok(prompt) => prompt,
            Err(error) => {
                refuse(job.respond_to, RefusalError::Template(error));
                return (rendering, None);
            }
        };
        let cost = rendering + self.template.tokenize_turn(&mut prompt);
        if prompt.tokens() >= MAX_COUNTED_CONTEXTS * self.context {
            refuse(job.respond_to, RefusalError::TooLong { tokens: prompt.tokens(), is_exact: false });
            return (cost, None);
        }
        match prompt.finish() {
            Err(prompt) => return (cost, Some(UnfinishedJob { job, prompt: Some(prompt) })),
            Ok(prompt) if prompt.is_empty() || prompt.len() >= self.context => {
                refuse(job.respond_to, RefusalError::TooLong { tokens: prompt.len(), is_exact: true });
            }
            Ok(prompt) => {
                // If the decode loop has stopped, the closed channel reports it to the client.
                let _ = self.inbox.send(Message::Complete(self.request(job, prompt)));
            }
        }
        (cost, None)
    }

    fn request(&self, job: Job, prompt: Vec<crate::cache::Token>) -> scheduler::Request<PendingCompletion> {
        scheduler::Request {
            max_tokens: usize::from(job.request.max_tokens().get()).min(self.context - prompt.len()),
            prompt,
            tag: job.tag,
            deadline: job.deadline,
            payload: PendingCompletion {
                temperature: job.request.temperature().get() as f32,
                reasoning: self.template.reasoning,
                respond_to: job.respond_to,
                bytes: Vec::new(),
            },
        }
    }
}

fn refuse(respond_to: Respond, refusal: RefusalError) {
    let _ = respond_to.send(Err(refusal)); // the client may be gone
}
