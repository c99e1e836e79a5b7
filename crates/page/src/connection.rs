//! A client connection of a session, owned by a task on the HTTP thread.
//!
//! The task writes the requests of one [`Job`] at a time and reads their replies; other jobs wait in a bounded queue.
//! If nobody waits for a reply any more, it is read nevertheless, so the connection stays in step. Messages of
//! subscriptions go to a function. When the server closes the connection, the queue closes, too.

use crate::reply::{Decoder, Kind, Reply};
use kvick_resp::Version;
use std::future::poll_fn;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

/// Jobs that may wait.
const JOBS_MAX: usize = 16;
/// JSON of one reply.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// JSON of all replies to a job. Later replies are marked as too large.
const JOB_BYTES_MAX: usize = 2 << 20;
/// JSON of one message.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// A request: its arguments, the first of which is the command's name.
pub type Request = Vec<Vec<u8>>;

/// Requests that are sent together.
struct Job {
    /// The database that they are about; `None` to stay in the present one.
    database: Option<u32>,
    requests: Vec<Request>,
    end: End,
    replies: oneshot::Sender<Vec<Reply>>,
}

/// When a job is complete.
#[derive(Clone, Copy)]
enum End {
    /// After one reply for each request.
    EachReplied,
    /// After a map. Changes of subscriptions are confirmed by messages and not by replies, so HELLO, which every user
    /// may call, follows them.
    Map,
}

/// Why there are no replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Too many jobs wait.
    Busy,
    /// The server has closed the connection.
    Closed,
}

/// Receives the messages that were read at once, each as JSON.
pub type OnMessages = Box<dyn Fn(Vec<String>) + Send>;

/// A handle to the task. The connection ends when the handle is dropped.
pub struct Connection {
    jobs: mpsc::Sender<Job>,
}

impl Connection {
    /// Starts the task. Must be called within the runtime of the HTTP thread.
    ///
    /// # Errors
    /// If the socket cannot be used.
    pub fn start(stream: StdUnixStream, on_messages: OnMessages) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let (jobs, queue) = mpsc::channel(JOBS_MAX);
        let task = Task { stream, queue, decoder: Decoder::new(REPLY_BYTES_MAX), database: 0, on_messages };
        tokio::spawn(task.run());
        Ok(Connection { jobs })
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.jobs.is_closed()
    }

    /// Sends requests about a database, and waits for one reply to each.
    ///
    /// # Errors
    /// If that is not possible.
    pub async fn call(&self, database: Option<u32>, requests: Vec<Request>) -> Result<Vec<Reply>, Failure> {
        self.run(database, requests, End::EachReplied).await
    }

    /// Changes subscriptions. Returns the errors.
    ///
    /// # Errors
    /// If that is not possible.
    pub async fn change_subscriptions(&self, mut requests: Vec<Request>) -> Result<Vec<String>, Failure> {
        requests.push(vec![b"HELLO".to_vec()]);
        let replies = self.run(None, requests, End::Map).await?;
        let error = |reply: Reply| match reply.kind {
            Kind::Error(text) => Some(text),
            _ => None,
        };
        Ok(replies.into_iter().filter_map(error).collect())
    }

    async fn run(&self, database: Option<u32>, requests: Vec<Request>, end: End) -> Result<Vec<Reply>, Failure> {
        let (replies, receiver) = oneshot::channel();
        self.jobs.try_send(Job { database, requests, end, replies }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Failure::Busy,
            mpsc::error::TrySendError::Closed(_) => Failure::Closed,
        })?;
        receiver.await.map_err(|_| Failure::Closed)
    }
}

struct Task {
    stream: UnixStream,
    queue: mpsc::Receiver<Job>,
    decoder: Decoder,
    /// The selected database.
    database: u32,
    on_messages: OnMessages,
}

/// The replies to requests of a connection that the server has closed with an error.
fn refused(mut replies: Vec<Reply>, requests: usize) -> Option<Vec<Reply>> {
    let last = replies.last().filter(|reply| reply.is_error())?.clone();
    replies.resize(requests.max(replies.len()), last);
    Some(replies)
}

/// What ends a wait.
enum Event {
    Job(Job),
    Input,
}

impl Task {
    /// Runs until either side ends the connection.
    async fn run(mut self) {
        let mut buffer = vec![0; READ_BYTES];
        let mut replies: Vec<Reply> = Vec::new();
        // Why the server does not admit the connection: it says so unasked, and closes.
        let mut refusal = None;
        while let Some((event, received)) = poll_fn(|cx| self.poll_idle(cx, &mut buffer)).await {
            let result = match event {
                Event::Job(job) => self.serve(job, &mut buffer).await,
                // Nothing was asked: otherwise only messages can arrive.
                Event::Input => self.decode(&buffer[..received], &mut replies, 0),
            };
            refusal = replies.drain(..).rfind(Reply::is_error).or(refusal);
            if result.is_err() {
                return;
            }
        }
        if let Some(refusal) = refusal {
            while let Some(job) = self.queue.recv().await {
                // As below.
                let _ = job.replies.send(vec![refusal.clone(); job.requests.len()]);
            }
        }
    }

    /// Waits for a job or for input. `None` ends the task.
    fn poll_idle(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Option<(Event, usize)>> {
        match self.poll_input(cx, buffer) {
            Poll::Ready(Ok(received)) => return Poll::Ready(Some((Event::Input, received))),
            Poll::Ready(Err(_)) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        self.queue.poll_recv(cx).map(|job| Some((Event::Job(job?), 0)))
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let result = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        result.map(|result| match (result, buffer.filled().len()) {
            (Ok(()), 0) => Err(io::ErrorKind::UnexpectedEof.into()),
            (Ok(()), received) => Ok(received),
            (Err(error), _) => Err(error),
        })
    }

    /// Selects the database of a job, sends its requests, and passes on their replies.
    async fn serve(&mut self, job: Job, buffer: &mut [u8]) -> io::Result<()> {
        if let Some(database) = job.database.filter(|database| *database != self.database) {
            let select = vec![b"SELECT".to_vec(), database.to_string().into_bytes()];
            let replies = self.exchange(&[select], End::EachReplied, buffer).await?;
            if let Some(refused) = replies.into_iter().find(Reply::is_error) {
                // The requests must not run in another database.
                let _ = job.replies.send(vec![refused; job.requests.len()]);
                return Ok(());
            }
            self.database = database;
        }
        let replies = self.exchange(&job.requests, job.end, buffer).await?;
        // This fails if the handler has given up.
        let _ = job.replies.send(replies);
        Ok(())
    }

    async fn exchange(&mut self, requests: &[Request], end: End, buffer: &mut [u8]) -> io::Result<Vec<Reply>> {
        let mut output = Vec::new();
        for request in requests {
            let mut out = kvick_resp::Reply::new(&mut output, Version::Resp2);
            out.array(request.len());
            request.iter().for_each(|argument| out.bulk(argument));
        }
        let mut replies: Vec<Reply> = Vec::new();
        if let Err(error) = self.stream.write_all(&output).await {
            while let Ok(received) = poll_fn(|cx| self.poll_input(cx, buffer)).await {
                self.decode(&buffer[..received], &mut replies, 0)?;
            }
            return refused(replies, requests.len()).ok_or(error);
        }
        loop {
            let is_complete = match end {
                End::EachReplied => replies.len() >= requests.len(),
                End::Map => replies.last().is_some_and(|reply| reply.kind == Kind::Map),
            };
            if is_complete {
                return Ok(replies);
            }
            let received = match poll_fn(|cx| self.poll_input(cx, buffer)).await {
                Ok(received) => received,
                Err(error) => return refused(replies, requests.len()).ok_or(error),
            };
            let kept = replies.iter().map(|reply| reply.json.len()).sum();
            self.decode(&buffer[..received], &mut replies, kept)?;
        }
    }

    /// Appends complete replies to `replies`, whose JSON has `kept` bytes so far, and passes messages on.
    fn decode(&mut self, mut input: &[u8], replies: &mut Vec<Reply>, mut kept: usize) -> io::Result<()> {
        let mut messages = Vec::new();
        while let Some(mut reply) = self.decoder.decode(&mut input).map_err(|_| io::ErrorKind::InvalidData)? {
            let is_message = reply.kind == Kind::Push;
            let bytes_max = if is_message { MESSAGE_BYTES_MAX } else { JOB_BYTES_MAX.saturating_sub(kept) };
            if reply.json.len() > bytes_max {
                reply.json = format!("{{\"too_large\":{bytes_max}}}");
            }
            if is_message {
                messages.push(reply.json);
            } else {
                kept += reply.json.len();
                replies.push(reply);
            }
        }
        if !messages.is_empty() {
            (self.on_messages)(messages);
        }
        Ok(())
    }
}
