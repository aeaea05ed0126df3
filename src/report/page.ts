import type { Certificate, Verification } from '../privacy/index.ts';
import { showEvent } from '../privacy/index.ts';
import { type CurvePoint, mostFound, mostRight, posterior } from './attacker.ts';
import { epsilonOverReleases, privacyCurve } from './curves.ts';
import { type Html, html, list, table, trusted } from './html.ts';
import { curvePlot, epsilonPlot, metricPlot, show } from './plots.ts';
import type { ReportedRun } from './run.ts';
import { style } from './style.ts';

/** A run and its certificate as one page that needs nothing else: no network, no script. */
export function reportPage(run: ReportedRun): string {
  const { certificate, name } = run;
  const curve = privacyCurve(certificate);
  const parts = [
    heading(run), run.verification.holds ? promise(certificate, curve) : null, limits(certificate), plots(run, curve), results(run), uncovered(run),
    howItWasDone(certificate), verification(run.verification), recipe(run),
  ];
  return `<!doctype html>\n${html`<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Privacy report: ${name}</title>
<style>${trusted(style)}</style>
</head>
<body>
${parts.filter((part) => part !== null)}
</body>
</html>
`.html}`;
}

function heading({ name, certificate, verification: { holds }, isFinished }: ReportedRun): Html {
  const { valid, epsilon, delta, unit, steps, plannedSteps, releases, partOf } = certificate;
  const trained = releases === null ? 'This model was trained' : `The ${releases.length} models of this run were trained`;
  const alone = releases !== null ? ', all of them together' : partOf === null ? ''
    : ` (this model alone; ε = ${show(partOf.epsilon)} for all ${partOf.models} models of its run together)`;
  const badge = !valid ? html`<span class="badge bad">no guarantee</span>`
    : holds ? html`<span class="badge good">guarantee holds, as far as the ledger can tell</span>`
    : html`<span class="badge bad">the certificate does not hold: see below</span>`;
  return html`<h1>Privacy report: ${name}</h1>
<p>${badge}${isFinished ? '' : html` <span class="badge warn">the run has not ended: ${steps} of ${plannedSteps} steps</span>`}</p>
<p class="lead">${valid && !holds
    ? html`The certificate claims ε = ${show(epsilon)} at δ = ${delta} for each ${unit}, but the check at the end of this page found that this
cannot be relied upon.`
    : valid
    ? html`${trained} with differential privacy: for each ${unit} of the training data, ε = ${show(epsilon)} at δ = ${delta}${alone}.`
    : html`This model comes <strong>without any guarantee</strong>: ${certificate.guarantee}.`}</p>`;
}

/** Said of a certificate that holds, and of no other. */
function promise({ epsilon, delta, unit, neighborsMeaning, releases, partOf }: Certificate, curve: readonly CurvePoint[]): Html {
  const right = mostRight(curve.length > 0 ? curve : [{ epsilon, delta }]);
  const seen = partOf !== null ? `this model, and none of the other models of its run nor the run’s own ledger,`
    : `${releases === null ? 'the model' : `all ${releases.length} models`} and everything else that this run made public,`;
  return html`<h2>What is promised</h2>
<p>Whoever sees ${seen} and knows whatever they like besides, even all of the
other data, learns only a bounded amount more about any single ${unit} than if it had not been there. Exactly: compare ${neighborsMeaning};
the chance of any outcome differs by at most a factor of e<sup>ε</sup> = ${show(Math.exp(epsilon))}, apart from
an exceptional δ = ${delta}.</p>
<div class="card">
<p><strong>If someone has to guess whether a certain ${unit} was in the training data</strong>, and it is as likely as not, they are right at most
${percent(right)} of the time. Guessing blindly gives 50 %.</p>
${table(['Before, the attacker was this sure that it was', 'Afterwards at most'], [0.01, 0.1, 0.5].map((prior) =>
    [percent(prior), percent(posterior(prior, epsilon))] as const))}
${table(['Of those who were not in the data, the attacker accuses', 'Of those who were, they find at most'], [0.001, 0.01, 0.1].map((rate) =>
    [percent(rate), percent(mostFound(curve, rate))] as const))}
<p class="note">The numbers are bounds that hold for every attacker; what known attacks reach is less. The first table leaves out exceptions
of probability about δ. As a rule of thumb, ε up to 1 is strong, up to about 10 is common in machine learning, and above that says little
(Ponomareva et al. 2023).</p>
</div>
<p>It does not keep secret what is true of people in general: if the data show that smoking causes cancer, the model may say so,
and whoever is known to smoke has learned something, whether or not their own ${unit} was there. A person with k ${unit}s in the data has
a guarantee of about k times the ε.</p>`;
}

const limits = ({ assumptions, notCovered }: Certificate): Html => html`<h2>What it rests on</h2>
${list(assumptions)}
<h2>What it does not cover</h2>
${list(notCovered)}`;

function plots({ certificate, metrics }: ReportedRun, curve: readonly CurvePoint[]): Html {
  const { epsilon, delta, plannedSteps, plannedEpsilon, clipping } = certificate;
  const spent = epsilonOverReleases(certificate);
  const window = Math.max(1, Math.round(metrics.length / 40));
  const shown = [
    spent.length > 1 ? epsilonPlot(spent, { steps: plannedSteps, epsilon: plannedEpsilon }) : null,
    curve.length > 0 && epsilon > 0 ? curvePlot(curve, { epsilon, delta }) : null,
    metricPlot(metrics, 'metrics', { id: 'metrics', title: 'Training, as far as noise lets one see', label: 'privatised', window }),
    clipping.threshold === 'fixed' ? null : metricPlot(metrics, 'thresholds', { id: 'thresholds', title: 'Clipping thresholds', label: 'threshold' }),
    metricPlot(metrics, 'learningRate', { id: 'rate', title: 'Learning rate', label: 'learning rate' }),
  ];
  return html`<h2>How the run went</h2>
<p class="note">Everything shown here is public or covered by ε.</p>
${shown.filter((plot) => plot !== null)}`;
}

/** Figures on the test data, and what they say about whom. */
function results({ result, certificate }: ReportedRun): Html | null {
  const test = result?.['test'];
  if (typeof test !== 'object' || test === null) return null;
  const { accuracy, loss, perplexity, examples } = test as Readonly<Record<string, unknown>>;
  const rows = [['Accuracy', accuracy, percent], ['Loss', loss, show], ['Perplexity', perplexity, show], ['Examples', examples, show]] as const;
  return html`<h2>How good the model is</h2>
${table([], rows.flatMap(([label, value, text]) => (typeof value === 'number' ? [[label, text(value)] as const] : [])))}
${certificate.releases === null ? '' : table(['Model', 'ε of this model alone', 'Accuracy'], certificate.releases.map(({ folder, epsilon }) =>
    [folder, show(epsilon), accuracyIn(result, folder)]))}
<p class="note">Measured on the test data without noise: the guarantee covers the training data; test data that are private themselves are not
protected by it.</p>`;
}

/** What a run's result has of the model in a folder of it. */
function accuracyIn(result: ReportedRun['result'], folder: string): string {
  const all: unknown = result?.['releases'];
  const own: unknown = Array.isArray(all) ? all.find((one) => `epsilon-${(Object(one) as { epsilon?: unknown }).epsilon as number}` === folder) : undefined;
  const { test } = Object(own) as { readonly test?: { readonly accuracy?: unknown } | null };
  return typeof test?.accuracy === 'number' ? percent(test.accuracy) : '–';
}

function uncovered({ uncovered: lines }: ReportedRun): Html | null {
  if (lines === null) return null;
  const charts = [
    metricPlot(lines, 'loss', { id: 'loss', title: 'Training loss', label: 'loss' }),
    metricPlot(lines, 'medianNorm', { id: 'norm', title: 'Median gradient norm', label: 'norm' }),
    metricPlot(lines, 'clipFraction', { id: 'clipped', title: 'Fraction of gradients clipped', label: 'fraction' }),
    metricPlot(lines, 'drawn', { id: 'drawn', title: 'Examples drawn', label: 'examples' }),
  ].filter((chart) => chart !== null);
  return html`<section class="uncovered"><h2 class="bad">Not covered by ε: do not share this page</h2>
<p>These numbers were computed from the private data without noise. They can tell of single records, and the guarantee says nothing of them.</p>
${charts.length > 0 ? charts : html`<p>None were found.</p>`}</section>`;
}

function howItWasDone(certificate: Certificate): Html {
  const { sampling, clipping, noise, steps, plannedSteps, accountant, errorBound, plannedEpsilon, ledger, software, event } = certificate;
  const truncated = sampling.maxBatchSize === null ? '' : `, cut to ${sampling.maxBatchSize}`;
  return html`<h2>How it was done</h2>
<p>${certificate.mechanism}.</p>
${table([], [
    ['Neighbouring data sets', certificate.neighborsMeaning],
    ['Records', show(sampling.datasetSize)],
    ['Sampling', `${sampling.name}, ${show(sampling.expectedBatchSize)} records a step on average${truncated} (rate ${show(sampling.sampleRate)})`],
    ['Clipping', `${clipping.style}, ${clipping.groups.length} ${clipping.groups.length === 1 ? 'group' : 'groups'}, norm ${show(clipping.norm)}, function ${clipping.function}`],
    ['Noise', `${noise.kind}, multiplier ${show(noise.multiplier)}: ${noise.source}`],
    ['Steps', `${steps} of ${plannedSteps} planned`],
    ['ε had all steps been taken', show(plannedEpsilon)],
    ['Accountant', `${accountant}${errorBound === null ? '' : `, at most ${errorBound.toExponential(1)} above the truth`}`],
    ['Everything released', showEvent(event)],
    ['Ledger', ledger === null ? 'none' : `${ledger.lines} lines, head ${ledger.head}`],
    ['Software', Object.entries(software).map(([name, version]) => `${name} ${version}`).join(', ')],
  ])}`;
}

const verification = ({ problems, accountants, epsilonClaimed }: Verification): Html => html`<h2>Verification</h2>
<p>${problems.length === 0
    ? 'The certificate was checked against the ledger of the run: no contradiction was found.'
    : 'The certificate was checked against the ledger of the run, and does not hold:'}</p>
${list(problems.map(({ what, where, found, expected }) => html`${what} (<code>${where}</code>)${found === undefined ? '' : html`; found ${found}`}${
    expected === undefined ? '' : html`; expected ${expected}`}`))}
${table(['ε of what the ledger says was released', ''], [
    ['claimed', epsilonClaimed === null ? '–' : show(epsilonClaimed)],
    ...accountants.map(({ accountant, epsilon }) => [`by ${accountant}`, show(epsilon)] as const),
  ])}
<p class="note">Anyone can repeat this: <code>ghostgrad verify privacy.json</code>, with <code>ledger.jsonl</code> beside it. A ledger shows accidents and partial
edits, not a forger who rewrites it as a whole.</p>`;

const recipe = ({ recipe: text }: ReportedRun): Html | null =>
  text === null ? null : html`<details><summary>The recipe of the run</summary><pre>${text}</pre></details>`;

const percent = (share: number): string => `${Number((100 * share).toPrecision(3))} %`;
