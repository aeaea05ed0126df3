// Every measure that the project holds itself to, against its target, in one run.
//   npm run build && node bench/acceptance.mjs [--quick] [--only TEXT] [--out DIR] [--python PATH] [--again] [--list]
//     [--rounds N] [--processes N]
// Each row is one command of the command line or one script beside this one, run by itself; what it answered is kept in
// DIR/ROW.json, so a run that was broken off goes on where it stopped (--again measures anew). Rows whose model or mode
// does not exist are reported as not run. --quick takes few rounds: to see that all of it works, not to quote.
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const { values: settings } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false }, again: { type: 'boolean', default: false }, list: { type: 'boolean', default: false },
    only: { type: 'string', default: '' }, out: { type: 'string', default: 'runs/acceptance' },
    python: { type: 'string', default: '/usr/bin/python3' }, rounds: { type: 'string', default: '15' },
    processes: { type: 'string', default: '5' },
  },
});
const { quick, python } = settings;
const [rounds, processes] = quick ? [2, 1] : [Number(settings.rounds), Number(settings.processes)];

const cli = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
const script = (name) => fileURLToPath(new URL(name, import.meta.url));

/** Model, physical batch and kind: as large as two cores measure in a minute or two. */
const models = [
  { model: 'vgg11', batch: 32, kind: 'cnn' },
  { model: 'vgg19', batch: 16, kind: 'cnn' },
  { model: 'resnet18-gn', batch: 16, kind: 'cnn' },
  { model: 'vit-small', batch: 16, kind: 'transformer' },
  { model: 'bert-base', batch: 4, sequence: 128, kind: 'transformer' },
  { model: 'gpt2-small', batch: 4, sequence: 128, kind: 'transformer' },
];
const flags = ({ model, batch, sequence }) => [
  '--model', model, '--batch-size', String(batch), ...(sequence === undefined ? [] : ['--sequence', String(sequence)]),
];
const named = ({ model, batch, sequence }) => `${model}, batch ${batch}${sequence === undefined ? '' : `, T = ${sequence}`}`;

const step = (one) => [
  cli, 'bench', 'step', ...flags(one), '--mode', 'non-private,book-keeping,per-layer,mixed-ghost', '--repeats', String(rounds),
  '--processes', String(processes), '--json',
];
const resultOf = (answer, mode) => answer.results.find((result) => result.mode === mode);
const atMost = (measure, target, value) => ({ measure, target: `≤ ${target.toFixed(3)}`, measured: value.toFixed(3), met: value <= target });
const atLeast = (measure, target, value) => ({ measure, target: `≥ ${target.toFixed(2)}`, measured: value.toFixed(3), met: value >= target });
const f = (answer) => resultOf(answer, 'book-keeping').extraFlopShare;

/** A row: what is run (programs of Node), and what the answer says, measure by measure. */
const rows = [
  ...models.map((one) => ({
    id: `step-${one.model}`,
    what: named(one),
    command: step(one),
    read: (answer) => {
      const [kept, layered, twice] = ['book-keeping', 'per-layer', 'mixed-ghost'].map((mode) => answer.ratios[mode]);
      const [isCnn, rate] = [one.kind === 'cnn', resultOf(answer, 'non-private').rate];
      const [planned, base] = ['per-layer', 'non-private'].map((mode) => resultOf(answer, mode).plannedLiveBytes);
      const ceiling = answer.ceilingGflops / answer.gemmGflops;
      const share = `f = ${f(answer).toFixed(3)}`;
      return [
        atMost(`book-keeping / non-private, time (${share})`, Math.min(1.03 + f(answer), isCnn ? 1.10 : 1.12), kept.time),
        atMost('book-keeping / non-private, peak memory', 1.20, kept.memory),
        atMost(`per-layer / non-private, time (${share})`, 1.03 + f(answer), layered.time),
        atMost('per-layer / non-private, planned live bytes', 1.02, planned / base),
        atMost('per-layer / non-private, peak memory', 1.05, layered.memory),
        atMost('mixed-ghost / non-private, peak memory', 1.05, twice.memory),
        atLeast(`model rate / MatMul rate (ceiling of its own contractions: ${ceiling.toFixed(2)})`, isCnn ? 0.70 : 0.75, rate),
      ];
    },
  })),
  ...models.map((one) => ({
    id: `pytorch-${one.model}`,
    what: named(one),
    command: [
      script('compare-pytorch.mjs'), one.model, String(one.batch), ...(one.sequence === undefined ? [] : ['--sequence', String(one.sequence)]),
      '--rounds', String(rounds), '--processes', String(processes), '--python', python,
    ],
    read: ({ results, bestPyTorch, torchVersion }) => {
      const [plain, kept] = [results['ghostgrad non-private'], results['ghostgrad book-keeping']];
      const whose = `non-private PyTorch ${torchVersion} (best: ${bestPyTorch})`;
      return [
        atMost(`book-keeping / ${whose}, time`, one.kind === 'cnn' ? 1.10 : 0.90, kept.timeToBestPyTorch),
        atMost(`non-private / ${whose}, peak memory`, 1.05, plain.memoryToPyTorch),
      ];
    },
  })),
  {
    id: 'max-batch-vgg19',
    what: `vgg19, at most ${quick ? 256 : 4096} MiB`,
    command: [
      cli, 'bench', 'max-batch', '--model', 'vgg19', '--memory-mib', quick ? '256' : '4096', '--json',
      '--mode', 'non-private,book-keeping,mixed-ghost,per-layer,instantiate',
    ],
    read: ({ results, ratios }) => {
      const [best] = results.filter(({ mode }) => mode !== 'non-private').sort((a, b) => b.maxBatch - a.maxBatch);
      const instantiate = results.find(({ mode }) => mode === 'instantiate');
      return [
        atLeast(`largest batch, best private mode (${best.mode})`, quick ? 50 : 800, best.maxBatch),
        atLeast(`largest batch, ${best.mode} / non-private`, 0.95, ratios[best.mode]),
        atLeast('largest batch, instantiate', quick ? 2 : 40, instantiate.maxBatch),
      ];
    },
  },
  {
    id: 'linear-in-batch',
    what: 'vgg11, physical batch 8 to 64',
    command: [
      cli, 'bench', 'sweep', '--over', 'batch', '--model', 'vgg11', '--values', quick ? '8,16,32' : '8,16,24,32,48,64',
      '--repeats', String(quick ? 1 : 7), '--processes', quick ? '1' : '3', '--json',
    ],
    read: ({ fits }) => fits.flatMap(({ mode, time, memory }) => [
      atLeast(`${mode}: time is linear in the batch (R²)`, 0.98, time.line.rSquared),
      atLeast(`${mode}: memory is linear in the batch (R²)`, 0.98, memory.line.rSquared),
    ]),
  },
  {
    id: 'constant-in-logical-batch',
    what: 'vgg11, physical batch 16, logical batch 32 to 256',
    command: [
      cli, 'bench', 'sweep', '--over', 'logical', '--model', 'vgg11', '--batch-size', '16',
      '--values', quick ? '32,64' : '32,64,128,256', '--repeats', '1', '--processes', quick ? '1' : '3', '--json',
    ],
    read: ({ fits }) => fits.map(({ mode, memory }) => atMost(`${mode}: memory, largest / smallest`, 1.05, memory.spread)),
  },
];

/** What a program of Node prints as JSON; rejects with the message it ends with. */
const answerOf = (command) => new Promise((resolve, reject) => {
  const child = spawn(process.execPath, command, { stdio: ['ignore', 'pipe', 'pipe'] });
  let [out, said] = ['', ''];
  child.stdout.on('data', (chunk) => { out += chunk; });
  child.stderr.on('data', (chunk) => { said += chunk; });
  child.on('error', reject);
  child.on('close', (code) => {
    if (code === 0) return resolve(JSON.parse(out));
    const lines = said.trim().split('\n');
    reject(new Error(lines.find((line) => /^\w*error\b/i.test(line.trim())) ?? lines.at(-1) ?? `it ended with code ${code}`));
  });
});

const shown = (command) => ['node', ...command].join(' ').replaceAll(fileURLToPath(new URL('..', import.meta.url)), '');

async function outcomeOf(row) {
  const path = join(settings.out, `${quick ? 'quick-' : ''}${row.id}.json`);
  if (!settings.again && existsSync(path)) return { ...JSON.parse(readFileSync(path, 'utf8')), row };
  process.stderr.write(`${row.id}: ${shown(row.command)}\n`);
  try {
    const answer = await answerOf(row.command);
    const outcome = { id: row.id, what: row.what, command: shown(row.command), at: new Date().toISOString(), measures: row.read(answer), answer };
    writeFileSync(`${path}.part`, JSON.stringify(outcome, null, 2));
    renameSync(`${path}.part`, path);
    return { ...outcome, row };
  } catch (error) {
    process.stderr.write(`  not run: ${error.message}\n`);
    return { id: row.id, what: row.what, command: shown(row.command), reason: error.message };
  }
}

const wanted = rows.filter(({ id }) => id.includes(settings.only));
if (settings.list) {
  wanted.forEach((row) => console.log(`${row.id.padEnd(28)} ${shown(row.command)}`));
  process.exit(0);
}
mkdirSync(settings.out, { recursive: true });
const outcomes = [];
for (const row of wanted) outcomes.push(await outcomeOf(row));

console.log('| setting | measure | target | measured | |\n|---|---|---|---|---|');
for (const { what, id, measures, reason } of outcomes) {
  if (measures === undefined) console.log(`| ${what} | ${id} | | | not run: ${reason.replaceAll('|', '\\|')} |`);
  for (const { measure: name, target, measured, met } of measures ?? []) {
    console.log(`| ${what} | ${name} | ${target} | ${measured} | ${met ? 'met' : '**missed**'} |`);
  }
}
console.log(`\n${outcomes.map(({ id, command }) => `- ${id}: \`${command}\``).join('\n')}`);
