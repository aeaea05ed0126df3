import type { TypedArrays } from '../tensor/tensor.ts';

/** A tensor as it crosses between threads. */
export interface WireTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data: TypedArrays[keyof TypedArrays];
}

export type WorkerRequest =
  | { readonly kind: 'create'; readonly model: Uint8Array; readonly threads: number; readonly profile: string | undefined }
  | { readonly kind: 'run'; readonly feeds: readonly [string, WireTensor][] }
  | { readonly kind: 'release' };

export interface WorkerReply {
  readonly error?: string;
  readonly outputs?: readonly [string, WireTensor][];
  readonly feeds?: readonly [string, WireTensor][];
}

interface RuntimeTensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly data: TypedArrays[keyof TypedArrays];
}

interface Runtime {
  readonly Tensor: new (type: string, data: unknown, dims: readonly number[]) => RuntimeTensor;
  readonly InferenceSession: {
    create(model: Uint8Array, options: Record<string, unknown>): Promise<{
      run(feeds: Record<string, RuntimeTensor>): Promise<Record<string, RuntimeTensor>>;
      endProfiling(): void;
      release(): Promise<void>;
    }>;
  };
}

/**
 * The worker's whole program. It is started from its own text, so it may use nothing but its argument: no imports,
 * nothing from this module.
 */
export function workerMain(require: (id: string) => unknown): void {
  const { parentPort, workerData } = require('node:worker_threads') as {
    parentPort: { on(event: string, f: (request: WorkerRequest) => void): void; postMessage(reply: WorkerReply, moved: ArrayBuffer[]): void };
    workerData: { runtime: string };
  };
  const { InferenceSession, Tensor } = require(workerData.runtime) as Runtime;
  let session: Awaited<ReturnType<Runtime['InferenceSession']['create']>> | undefined;
  let profiling = false;

  const answer = async (request: WorkerRequest): Promise<WorkerReply> => {
    if (request.kind === 'create') {
      profiling = request.profile !== undefined;
      session = await InferenceSession.create(request.model, {
        intraOpNumThreads: request.threads,
        // The arena and the memory pattern cost a quarter to two fifths more peak memory here, and save no time.
        enableCpuMemArena: false,
        enableMemPattern: false,
        graphOptimizationLevel: 'all',
        logSeverityLevel: 3,
        ...(profiling && { enableProfiling: true, profileFilePrefix: request.profile }),
      });
      return {};
    }
    if (session === undefined) throw new Error('no session');
    if (request.kind === 'release') {
      if (profiling) session.endProfiling();
      await session.release();
      return {};
    }
    const feeds = Object.fromEntries(request.feeds.map(([name, t]) => [name, new Tensor(t.dtype, t.data, t.shape)]));
    const found = await session.run(feeds);
    const outputs = Object.entries(found).map(([name, t]): [string, WireTensor] => [name, { dtype: t.type, shape: [...t.dims], data: t.data }]);
    return { outputs, feeds: request.feeds };
  };

  parentPort.on('message', (request) => {
    answer(request).then(
      (reply) => {
        const moved = new Set<ArrayBuffer>();
        for (const [, t] of [...(reply.outputs ?? []), ...(reply.feeds ?? [])]) moved.add(t.data.buffer as ArrayBuffer);
        parentPort.postMessage(reply, [...moved]);
      },
      (error: unknown) => parentPort.postMessage({ error: error instanceof Error ? error.message : String(error) }, []),
    );
  });
}
