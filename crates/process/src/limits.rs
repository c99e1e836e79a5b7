//! The limit of open files, and the number of clients it allows.

use kvick_config::Refusal;
use kvick_runtime::logging;
use std::io;

/// Descriptors besides those of clients: listeners, log, data files, standard streams.
const RESERVED: u64 = 32;
/// Workers whose own descriptors are included in the reserved ones.
const WORKERS_RESERVED: u64 = 4;
/// Descriptors per worker: its poll, its waker, and both ends of its pipe for pages.
const PER_WORKER: u64 = 4;
/// The limit assumed if the system does not report it.
const LIMIT_ASSUMED: u64 = 1024;

/// Raises the limit so that `maxclients` connections fit. Returns the number that fits, which is lower if the limit
/// cannot be raised that far, and logs the change.
/// `others` is the number of descriptors of other parts of the process. Fails if not even one client fits.
pub fn allow_clients(maxclients: u32, workers: usize, others: u64) -> Result<u32, TooLow> {
    let reserved = RESERVED + others + PER_WORKER * (workers as u64).saturating_sub(WORKERS_RESERVED);
    let needed = u64::from(maxclients) + reserved;
    let (soft, hard) = match limits() {
        Ok(limits) => limits,
        Err(error) => {
            logging::warning(format_args!(
                "Unable to obtain the current NOFILE limit ({}), assuming {LIMIT_ASSUMED} and setting the max \
                 clients configuration accordingly.",
                Refusal::from(error)
            ));
            (LIMIT_ASSUMED, LIMIT_ASSUMED)
        }
    };
    if soft >= needed {
        return Ok(maxclients);
    }
    let error = match raise(needed, hard) {
        Ok(()) => {
            logging::notice(format_args!(
                "Increased maximum number of open files to {needed} (it was originally set to {soft})."
            ));
            return Ok(maxclients);
        }
        Err(error) => error,
    };
    // An unprivileged process can raise the soft limit to the hard limit.
    let reached = if hard > soft && set_limits(hard, hard).is_ok() { hard } else { soft };
    if reached <= reserved {
        return Err(TooLow { limit: soft, needed });
    }
    let fit = u32::try_from(reached - reserved).unwrap_or(u32::MAX).min(maxclients);
    logging::warning(format_args!(
        "You requested maxclients of {maxclients} requiring at least {needed} max file descriptors."
    ));
    logging::warning(format_args!(
        "Server can't set maximum open files to {needed} because of OS error: {}.",
        Refusal::from(error)
    ));
    logging::warning(format_args!(
        "Current maximum open files is {reached}. maxclients has been reduced to {fit} to compensate for low ulimit. \
         If you need higher maxclients increase 'ulimit -n'."
    ));
    Ok(fit)
}

/// The limit does not allow a single client.
#[derive(Debug)]
pub struct TooLow {
    limit: u64,
    needed: u64,
}

impl std::fmt::Display for TooLow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooLow { limit, needed } = self;
        write!(
            f,
            "Your current 'ulimit -n' of {limit} is not enough for the server to start. Please increase your open file \
             limit to at least {needed}. Exiting."
        )
    }
}

impl std::error::Error for TooLow {}

/// The soft and the hard limit.
fn limits() -> io::Result<(u64, u64)> {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the argument points to a value of ours that lives through the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) } {
        0 => Ok((limits.rlim_cur, limits.rlim_max)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the soft limit, and raises the hard limit if necessary.
fn raise(requested: u64, hard: u64) -> io::Result<()> {
    set_limits(requested, requested.max(hard))
}

fn set_limits(soft: u64, hard: u64) -> io::Result<()> {
    let limits = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: as above; the call only reads it.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
