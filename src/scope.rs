//! A lock for as long as a piece of work takes.

use crate::{error::WithLockError, guard::LockGuard, options::LockOptions, redlock::Redlock};

impl Redlock {
    /// Acquires the lock, runs `body` under it, and releases it.
    ///
    /// `body` is lent the guard. When the lock is lost its future is dropped at the next point where it
    /// waits: what it has spawned, and what runs without waiting, goes on. The lock is released on
    /// return, on a panic and when this future is dropped.
    ///
    /// # Errors
    ///
    /// [`WithLockError::Acquire`] if the body never ran. [`WithLockError::Lost`] if it was dropped.
    /// [`WithLockError::Release`], with what the body returned, if the lock was lost without anybody
    /// noticing before the release, or if the release was not confirmed. An error that the body returns
    /// is its value, and never hidden.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future drops the body and releases in the background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(redlock: quorumlock::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// use quorumlock::LockOptions;
    ///
    /// let report = redlock
    ///     .with_lock("nightly-report", LockOptions::new(), async |guard| {
    ///         format!("written with {:?} left", guard.remaining())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_lock<T, F>(
        &self,
        resource: &str,
        options: LockOptions,
        body: F,
    ) -> Result<T, WithLockError<T>>
    where
        F: AsyncFnOnce(&mut LockGuard) -> T,
    {
        let mut guard =
            self.acquire_with(resource, options).await.map_err(WithLockError::Acquire)?;
        let lost = guard.lost_token();
        let value = tokio::select! {
            biased;
            // Looked at first: a body that is ready after the loss is too late as well.
            () = lost.cancelled() => None,
            value = body(&mut guard) => Some(value),
        };
        let released = guard.release().await;
        match (value, released) {
            (Some(value), Ok(())) => Ok(value),
            (Some(value), Err(error)) => Err(WithLockError::Release { value, error }),
            (None, _) => Err(WithLockError::Lost),
        }
    }
}
