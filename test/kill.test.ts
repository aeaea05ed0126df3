import { spawn } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { isTemporary } from '../src/files.ts';
import { verifyLedger } from '../src/privacy/ledger.ts';
import { batchOf } from '../src/data/index.ts';
import { blobs } from './support/blobs.ts';
import { temporaryFolder } from './support/temp.ts';

/** As built: `npm run build` first. */
const program = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
/** How many times a process is killed; `npm run test:kill` asks for 200. */
const kills = Number(process.env['KILLS'] ?? 3);

/** Runs the command line in a process that is killed after so many milliseconds; whether it ended by itself. */
function ghostgrad(args: readonly string[], killAfterMs = Infinity): Promise<{ readonly ended: boolean; readonly errors: string }> {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, [program, ...args, '--json'], { stdio: ['ignore', 'ignore', 'pipe'] });
    let errors = '';
    child.stderr.on('data', (text: Buffer) => (errors += text.toString()));
    const timer = killAfterMs === Infinity ? undefined : setTimeout(() => child.kill('SIGKILL'), killAfterMs);
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      if (signal === null) expect(code, errors).toBe(0);
      resolve({ ended: signal === null, errors });
    });
  });
}

const traced = ['model.onnx', 'privacy.json', 'ledger.jsonl', 'metrics.jsonl'];
const traces = (folder: string): Readonly<Record<string, string>> =>
  Object.fromEntries(traced.map((name) => [name, readFileSync(join(folder, name), 'latin1')]));

describe.skipIf(!existsSync(program) && process.env['CI'] === undefined)('a run that is killed again and again', () => {
  it(`ends as if it had not been, after ${kills} kills`, { timeout: 3_600_000 }, async () => {
    const { folder } = temporaryFolder();
    const { features, labels } = batchOf(blobs(), Uint32Array.from({ length: 200 }, (_, i) => i));
    const x = features.get('input')!.data as Float32Array;
    const table = [...(labels.data as BigInt64Array)].map((y, i) => [...x.subarray(4 * i, 4 * i + 4), y].join());
    const csv = join(folder, 'blobs.csv');
    writeFileSync(csv, ['a,b,c,d,y', ...table].join('\n'));
    const recipe = join(folder, 'recipe.yaml');
    writeFileSync(recipe, JSON.stringify({
      model: { name: 'mlp', input: 4, hidden: [8], classes: 2, activation: 'tanh' },
      data: { train: { path: csv, label: 'y' } },
      privacy: { epsilon: 8, delta: 1e-4 },
      clipping: { norm: 1, threshold: { adaptive: { quantile: 0.6, learningRate: 0.2, budgetFraction: 0.01 } } },
      training: { batchSize: 50, steps: 150, seed: 3, optimizer: { name: 'adam', learningRate: 0.01 } },
      performance: { threads: 1, checkpointEvery: 4 },
    }));
    const output = join(folder, 'run');
    const started = performance.now();
    await ghostgrad(['train', recipe, '--out', output]);
    const whole = performance.now() - started;
    const expected = traces(output);

    let killed = 0;
    let [runs, begun, atCheckpoint] = [0, 0, 0];
    while (killed < kills) {
      rmSync(output, { recursive: true });
      runs += 1;
      for (let last = 0; ;) {
        const resumes = existsSync(join(output, 'recipe.yaml'));
        // More often while steps are taken than while the process starts.
        const after = whole * (0.25 + 0.6 * Math.random());
        const { ended } = await ghostgrad(resumes ? ['train', '--resume', output] : ['train', recipe, '--out', output], killed < kills ? after : Infinity);
        if (ended) break;
        killed += 1;
        const ledger = join(output, 'ledger.jsonl');
        const { lines, problems } = existsSync(ledger) ? await verifyLedger(ledger) : { lines: [], problems: [] };
        expect(problems).toEqual([]);
        // Nothing that was charged is forgotten, and nothing is charged twice.
        expect(lines.length).toBeGreaterThanOrEqual(last);
        expect(lines.map(({ step }) => step)).toEqual(lines.map((_, i) => i));
        last = lines.length;
        if (last > 0) begun += 1;
        if (existsSync(output) && readdirSync(output, { recursive: true }).some((name) => isTemporary(String(name).split('/').at(-1)!) || String(name).endsWith('.new'))) atCheckpoint += 1;
      }
      expect(traces(output)).toEqual(expected);
      expect(readdirSync(join(output, 'checkpoint')).sort()).toEqual(['certificate.json', 'step-150-150.safetensors']);
      expect(readdirSync(output).filter((name) => name.startsWith('run.lock') || isTemporary(name))).toEqual([]);
    }
    console.log(`${killed} kills in ${runs} runs: ${begun} after the first step, ${atCheckpoint} in the middle of writing a file; every run ended the same`);
    rmSync(output, { recursive: true });
  });
});
