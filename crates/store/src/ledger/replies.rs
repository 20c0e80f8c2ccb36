//! Replies of the ledger's writer to the requests that wait for their rows.
//!
//! Waking a task on another thread costs a system call. So each thread gets the replies of a group in one message, and a
//! task on that thread distributes them.

use chat::RequestId;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::ledger::queue::RecordError;

/// When a row was durable, in microseconds since 1970.
pub(crate) type Recorded = Result<u64, RecordError>;

/// The receiver of a reply.
pub(crate) struct ReplyAddress {
    pub(crate) sender: oneshot::Sender<Recorded>,
    /// The waiting thread, if it is known.
    pub(crate) port: Option<ReplyPort>,
}

/// The channel on which a thread receives replies.
#[derive(Clone)]
pub(crate) struct ReplyPort(mpsc::UnboundedSender<Vec<Reply>>);

impl ReplyPort {
    /// Its task ends when the last sender is dropped.
    pub(crate) fn open(runtime: &Handle) -> Self {
        let (port, mut received) = mpsc::unbounded_channel::<Vec<Reply>>();
        runtime.spawn(async move {
            while let Some(replies) = received.recv().await {
                replies.into_iter().for_each(Reply::deliver);
            }
        });
        Self(port)
    }
}

struct Reply {
    request_id: RequestId,
    sender: Option<oneshot::Sender<Recorded>>,
    result: Recorded,
}

impl Reply {
    /// Logs a failure if no request waits for it, for example because the client has disconnected.
    fn deliver(self) {
        let unread = match self.sender {
            Some(sender) => sender.send(self.result).err(),
            None => Some(self.result),
        };
        if let Some(Err(reason)) = unread {
            tracing::error!(request_id = %self.request_id, %reason, "the row was not recorded");
        }
    }
}

/// The replies of one group. There are few threads, so a linear search suffices.
#[derive(Default)]
pub(crate) struct Replies(Vec<(ReplyPort, Vec<Reply>)>);

impl Replies {
    pub(crate) fn add(&mut self, request_id: RequestId, to: Option<ReplyAddress>, result: Recorded) {
        let (sender, port) = to.map(|to| (to.sender, to.port)).unzip();
        let reply = Reply { request_id, sender, result };
        let Some(port) = port.flatten() else { return reply.deliver() };
        match self.0.iter_mut().find(|(known, _)| known.0.same_channel(&port.0)) {
            Some((_, replies)) => replies.push(reply),
            None => self.0.push((port, vec![reply])),
        }
    }

    pub(crate) fn send(self) {
        for (port, replies) in self.0 {
            // The thread has ended, and cannot distribute them.
            if let Err(mpsc::error::SendError(replies)) = port.0.send(replies) {
                replies.into_iter().for_each(Reply::deliver);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: Option<&ReplyPort>) -> (ReplyAddress, oneshot::Receiver<Recorded>) {
        let (sender, receiver) = oneshot::channel();
        (ReplyAddress { sender, port: port.cloned() }, receiver)
    }

    #[tokio::test]
    async fn every_request_gets_its_reply_on_any_thread() {
        let ports = [ReplyPort::open(&Handle::current()), ReplyPort::open(&Handle::current())];
        let mut replies = Replies::default();
        let mut waiting = Vec::new();
        for number in 0..9 {
            let (to, receiver) = address(ports.get(number % 3));
            replies.add(RequestId::now(), Some(to), if number == 4 { Err(RecordError::RowRefused) } else { Ok(7) });
            waiting.push(receiver);
        }
        replies.add(RequestId::now(), None, Ok(7));
        assert_eq!(replies.0.len(), 2, "one message for each thread");
        replies.send();
        for (number, receiver) in waiting.into_iter().enumerate() {
            assert_eq!(receiver.await.unwrap().is_err(), number == 4, "{number}");
        }
    }

    #[test]
    fn replies_arrive_although_their_thread_has_ended() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let port = ReplyPort::open(runtime.handle());
        drop(runtime);
        let (to, mut receiver) = address(Some(&port));
        let mut replies = Replies::default();
        replies.add(RequestId::now(), Some(to), Ok(7));
        replies.send();
        assert_eq!(receiver.try_recv(), Ok(Ok(7)));
    }
}
