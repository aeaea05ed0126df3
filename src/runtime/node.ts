import { Worker } from 'node:worker_threads';
import { GhostgradError } from '../errors.ts';
import { encodeModel } from '../graph/encode.ts';
import type { Graph, TypedGraph, ValueInfo } from '../graph/ir.ts';
import { type DType, type Shape, type Tensor, sizeOf, tensor, zeros } from '../tensor/tensor.ts';
import type { Engine, Feeds, Outputs, RunResult, Session, SessionOptions } from './engine.ts';
import { withBareOutputs } from './bare-outputs.ts';
import { blockSize, hasConvolutions, withFastConvolutions } from './blocked.ts';
import { withStandardisedGroups } from './channel-norms.ts';
import { defaultThreads } from './threads.ts';
import { unread, withUnread } from './unread.ts';
import type { WireTensor, WorkerReply, WorkerRequest } from './protocol.ts';

export interface EngineOptions {
  /**
   * The thread that computes. `own` (the default): each session has one, so that the caller's has progress, Ctrl-C and
   * the next batch to attend to while it waits; buffers are moved there and back. `caller`: the thread that calls `run`
   * is busy until it is done, and gets messages, timers and signals between runs alone. That spares moving the buffers,
   * which are as large as the model twice over, and which V8 greets with a collection of garbage, on both sides, in every
   * run (some 8 % of the time of a step of VGG11). Sessions that are `concurrent` have threads of their own all the same.
   */
  readonly thread?: 'own' | 'caller';
}

/** ONNX Runtime for Node, on the processor. */
export function onnxruntimeEngine({ thread = 'own' }: EngineOptions = {}): Engine {
  return { name: 'onnxruntime-node (CPU)', compile: (graph, options = {}) => compile(graph, options, options.concurrent === true ? 'own' : thread) };
}

/** Asked of the processor once, by the first graph that has a use for the answer. */
let block: Promise<number | undefined> | undefined;

/** What is executed for a graph on this processor. */
export async function programOf(given: TypedGraph): Promise<Graph> {
  const graph = withStandardisedGroups(given);
  if (!hasConvolutions(graph)) return graph;
  block ??= blockSize(async (probe, feeds) => {
    const session = await open(probe, probe, { threads: 1 }, 'own');
    const { outputs } = await session.run(feeds);
    await session.release();
    return outputs;
  });
  return withFastConvolutions(graph, await block);
}

async function compile(graph: TypedGraph, options: SessionOptions, thread: Thread): Promise<Session> {
  const bare = withBareOutputs(graph);
  // Of constant kernels, ONNX Runtime itself makes what `programOf` makes of others.
  const session = await open(bare, options.frozen === true ? bare : await programOf(bare), options, thread);
  const shapes = new Map(graph.outputs.map(({ name, shape }, i) => [name, shape === bare.outputs[i]!.shape ? null : shape as Shape]));
  return {
    ...session,
    run: async (feeds, spare) => {
      const { outputs, ...rest } = await session.run(feeds, spare);
      const shaped = Object.entries(outputs).map(([name, output]) => [name, { ...output, shape: shapes.get(name) ?? output.shape }]);
      return { ...rest, outputs: Object.fromEntries(shaped) as Outputs };
    },
  };
}

/** A session for `graph`, which is computed as `program` says. */
async function open(graph: TypedGraph, program: Graph, options: SessionOptions, thread: Thread): Promise<Session> {
  const { call, end } = thread === 'own' ? ownThread() : callersThread();
  const model = withUnread(encodeModel(program));
  try {
    await call({
      kind: 'create', model, threads: options.threads ?? defaultThreads(), profile: options.profile, unread,
      frozen: options.frozen === true, fusesPads: options.frozen === true && !program.nodes.some(({ op }) => op === 'MaxPool'),
    }, [model.buffer]);
  } catch (cause) {
    await end();
    throw new GhostgradError({
      what: `ONNX Runtime does not take the graph "${graph.name}"`,
      found: cause instanceof Error ? cause.message : String(cause),
      fix: 'report this graph: it passed the checks of the importer',
    }, { cause });
  }
  return {
    run: (feeds, spare) => run(call, graph, feeds, spare),
    release: async () => {
      await call({ kind: 'release' }, []);
      await end();
    },
  };
}

type Thread = NonNullable<EngineOptions['thread']>;
type Call = (request: WorkerRequest, moved: readonly ArrayBuffer[]) => Promise<WorkerReply>;

/** Who answers the requests of one session. */
interface Host {
  readonly call: Call;
  end(): Promise<unknown>;
}

function ownThread(): Host {
  // Loaders of the main thread (a TypeScript runner, say) are none of the worker's business.
  const worker = new Worker(new URL('./worker.js', import.meta.url), { execArgv: [] });
  return { call: caller(worker), end: () => worker.terminate() };
}

function callersThread(): Host {
  let session: Awaited<ReturnType<typeof import('./ort.js').createSession>> | undefined;
  return {
    call: async (request) => {
      if (request.kind === 'create') {
        // Only now: a session with a thread of its own loads ONNX Runtime there.
        const { createSession } = await import('./ort.js');
        session = await createSession(request);
        return {};
      }
      if (request.kind === 'release') return session!.release();
      // Which waits for messages, timers and signals first.
      return session!.run(request);
    },
    end: async () => undefined,
  };
}

/** One request at a time; the worker answers in order. */
function caller(worker: Worker): Call {
  const waiting: { resolve: (reply: WorkerReply) => void; reject: (error: Error) => void }[] = [];
  const failAll = (error: Error) => waiting.splice(0).forEach(({ reject }) => reject(error));
  worker.on('message', (reply: WorkerReply) => {
    const next = waiting.shift();
    if (reply.error === undefined) next?.resolve(reply);
    else next?.reject(new Error(reply.error));
    if (waiting.length === 0) worker.unref();
  });
  worker.on('error', failAll);
  worker.on('exit', (code) => failAll(new Error(`the runtime's thread ended with code ${code}`)));
  // An idle session must not keep the process alive.
  worker.unref();
  return (request, moved) => new Promise((resolve, reject) => {
    worker.postMessage(request, [...moved]);
    // Only now: a message that could not be sent gets no answer, and must not wait for that of another.
    waiting.push({ resolve, reject });
    worker.ref();
  });
}

async function run(call: Call, graph: TypedGraph, feeds: Feeds, spare: Outputs = {}): Promise<RunResult> {
  const missing = graph.inputs.filter(({ name }) => feeds[name] === undefined).map(({ name }) => name);
  if (missing.length > 0) {
    throw new GhostgradError({ what: 'the graph lacks inputs', where: graph.name, expected: missing.join(', ') });
  }
  const gone = graph.inputs.find(({ name }) => feeds[name]!.data.length !== sizeOf(feeds[name]!.shape));
  if (gone !== undefined) {
    throw new GhostgradError({
      what: 'the data of an input is not there', where: `input "${gone.name}" of ${graph.name}`,
      found: `${feeds[gone.name]!.data.length} elements`, expected: `${sizeOf(feeds[gone.name]!.shape)}`,
      fix: 'its buffer moved to the engine in an earlier run: feed the tensors that the run gave back',
    });
  }
  const wired: [string, WireTensor][] = graph.inputs.map(({ name }) => [name, toWire(feeds[name] as Tensor)]);
  const outputs = graph.outputs.map((output): [string, WireTensor | null] => [output.name, room(output, spare[output.name])]);
  const buffers = [...new Set([...wired, ...outputs].flatMap(([, t]) => (t === null ? [] : [t.data.buffer as ArrayBuffer])))];
  const reply = await call({ kind: 'run', feeds: wired, outputs }, buffers);
  return { outputs: fromWire(reply.outputs), feeds: fromWire(reply.feeds) };
}

/**
 * Where an output goes: ONNX Runtime would allocate it too, and then copy it into a buffer that can move. Null where the
 * graph leaves its shape open.
 */
function room({ dtype, shape: declared }: ValueInfo, spare: Tensor | undefined): WireTensor | null {
  if (declared === null || !declared.every((n) => typeof n === 'number')) return null;
  const fits = spare?.dtype === dtype && spare.data.length === sizeOf(declared);
  return toWire(fits ? { ...spare, shape: declared } : zeros(dtype, declared));
}

/** A tensor that owns its buffer; a view of part of another is copied, since a buffer moves as a whole. */
function toWire({ dtype, shape, data }: Tensor): WireTensor {
  const owns = data.buffer instanceof ArrayBuffer && data.byteLength === data.buffer.byteLength;
  return { dtype, shape, data: owns ? data : data.slice() };
}

const fromWire = (pairs: readonly [string, WireTensor][] | undefined): Record<string, Tensor> =>
  Object.fromEntries((pairs ?? []).map(([name, t]) => [name, tensor(t.dtype as DType, t.shape, t.data as never)]));
