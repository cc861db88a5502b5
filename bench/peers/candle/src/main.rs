//! candle's own Qwen3 in 32-bit floats, as a worker: a request a line on standard input, an answer a line on standard
//! output. See `bench/peers/worker.py` for the protocol.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen3::{Config, Model};

#[derive(serde::Deserialize)]
struct Request {
    prefix: Vec<u32>,
    states: Vec<Vec<u32>>,
}

#[derive(serde::Serialize)]
struct Answer {
    wall_s: f64,
    cpu_s: f64,
    hidden: Vec<Vec<f32>>,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Processor time of this process, in seconds: `utime` and `stime` of `proc_pid_stat(5)`, in ticks of 10 ms.
fn cpu_s() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |index| after_name.split_whitespace().nth(index).and_then(|it: &str| it.parse::<f64>().ok());
    (ticks(11).unwrap_or(f64::NAN) + ticks(12).unwrap_or(f64::NAN)) / 100.0
}

fn load(directory: &Path) -> Outcome<Model> {
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(directory.join("config.json"))?)?;
    for (key, standard) in [
        ("max_position_embeddings", serde_json::json!(40_960)),
        ("sliding_window", serde_json::Value::Null),
        ("max_window_layers", serde_json::json!(0)),
        ("tie_word_embeddings", serde_json::json!(true)),
        ("use_sliding_window", serde_json::json!(false)),
    ] {
        if config.get(key).is_none() {
            config[key] = standard;
        }
    }
    if config.get("rope_theta").is_none() {
        config["rope_theta"] = config["rope_parameters"]["rope_theta"].clone();
    }
    let config: Config = serde_json::from_value(config)?;
    let tensors = candle_core::safetensors::load(directory.join("model.safetensors"), &Device::Cpu)?;
    let named = |(name, tensor): (String, Tensor)| {
        let name = if name.starts_with("model.") { name } else { format!("model.{name}") };
        Ok((name, tensor.to_dtype(DType::F32)?))
    };
    let tensors: HashMap<String, Tensor> = tensors.into_iter().map(named).collect::<candle_core::Result<_>>()?;
    Ok(Model::new(&config, VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))?)
}

fn main() -> Outcome<()> {
    let directory = std::env::args().nth(1).ok_or("usage: tack-peer-candle DIRECTORY")?;
    let empty = load(Path::new(&directory))?;
    let mut held: (Vec<u32>, Model) = (Vec::new(), empty.clone());
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::json!({"ready": "candle 0.11.1, f32"}))?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        if held.0 != request.prefix {
            let mut model = empty.clone();
            let count = request.states.len();
            if !request.prefix.is_empty() {
                let tokens = Tensor::new(request.prefix.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
                model.forward(&tokens.repeat((count, 1))?, 0)?;
            }
            held = (request.prefix.clone(), model);
        }
        // A copy shares the tensors of the prefix; a pass joins them with its own into new ones.
        let mut model = held.1.clone();
        let (begun, cpu) = (Instant::now(), cpu_s());
        let tokens = Tensor::new(request.states, &Device::Cpu)?;
        let hidden = model.forward(&tokens, held.0.len())?;
        let last = hidden.dim(1)? - 1;
        let hidden = hidden.narrow(1, last, 1)?.squeeze(1)?.to_vec2::<f32>()?;
        let answer = Answer { wall_s: begun.elapsed().as_secs_f64(), cpu_s: cpu_s() - cpu, hidden };
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    Ok(())
}
