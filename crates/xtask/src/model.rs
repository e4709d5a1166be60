//! `model`: the model checker with a larger bound than in `test`.

use std::process::ExitCode;

use anyhow::Result;

use crate::tools::{cargo, watch};

pub(crate) async fn model() -> Result<ExitCode> {
    let mut command = cargo(["test", "-p", "model", "--", "--nocapture", "--test-threads", "1", "invariant"]);
    command.env("OUTBOX_MODEL_LARGE", "1");
    watch(command).await.map(|()| ExitCode::SUCCESS)
}
