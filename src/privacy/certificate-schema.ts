import { z } from 'zod';
import { allocations } from './allocation.ts';
import { eventSchema } from './event-schema.ts';
import { noises } from './lattice.ts';
import { samplings } from './sampling.ts';

const positive = z.number().positive();
const digest = z.string().regex(/^[0-9a-f]{64}$/);

/** Any text that says which format a certificate has, and what its schema is called. */
export const certificateFormat = 'ghostgrad-certificate/1';

const group = z.strictObject({
  name: z.string(),
  parameters: z.array(z.string()).describe('Names of the trainable parameters in the group'),
  size: z.int().positive().describe('Numbers in the parameters together'),
  norm: positive.describe('Threshold C_k in the first step: the L2 norm that each record’s gradient of the group was clipped to'),
  deviation: positive.describe('Standard deviation of the noise on each coordinate of the group’s clipped sum, in the first step'),
  grid: positive.nullable().describe('Distance of the grid’s points, to which the group’s sum was rounded and on which its noise is; null under float noise'),
  finalNorm: positive.describe('C_k in the last step; the first one under fixed thresholds'),
  finalDeviation: positive.describe('Standard deviation of the noise in the last step'),
  finalGrid: positive.nullable().describe('The grid in the last step'),
});

/**
 * The shape of `privacy.json`, the certificate of what a run spent. Published as a JSON schema
 * (`schema/privacy.schema.json`); every field says there what it means.
 */
export const certificateSchema = z.strictObject({
  format: z.literal(certificateFormat).describe('Format and version; the schema of this name is schema/privacy.schema.json of ghostgrad'),
  guarantee: z.string().describe('`(ε, δ)-differential privacy` in words, or why there is no guarantee'),
  valid: z.boolean().describe('False when nothing is guaranteed: seeded randomness, or an accountant that claims less ε than is spent'),
  mechanism: z.string().describe('What was done, in words'),
  unit: z.string().describe('What one record of the data is, e.g. `example`'),
  neighbors: z.enum(['add-remove', 'zero-out', 'replace-one']).describe('The relation between data sets that the guarantee is about'),
  neighborsMeaning: z.string().describe('The same in words'),
  sampling: z.strictObject({
    name: z.enum(samplings).describe(
      '`poisson`: each record is in a step’s batch independently with probability sampleRate; `truncated-poisson`: the same, cut to '
      + 'maxBatchSize records chosen at random; `without-replacement`: expectedBatchSize records, all subsets equally likely; '
      + '`full-batch`: all records',
    ),
    sampleRate: positive.max(1).describe('q = expectedBatchSize / datasetSize'),
    expectedBatchSize: positive.describe('Records in a step, on average; need not be whole'),
    datasetSize: z.int().positive().describe('N, the number of records, taken to be public'),
    maxBatchSize: z.int().positive().nullable().describe('What larger draws were cut to; null where none are cut'),
  }).describe('How the records of a step were drawn'),
  clipping: z.strictObject({
    style: z.string().describe('How the parameters were parted into groups that are clipped each by itself, e.g. `flat`, `per-layer`'),
    function: z.string().describe('The clip function: what a gradient of norm n is multiplied with; never more than C_k/n'),
    norm: positive.describe('√Σ C_k² over the groups, in the first step'),
    threshold: z.union([
      z.literal('fixed'),
      z.strictObject({
        adaptive: z.strictObject({
          quantile: positive.lt(1).describe('The fraction of records that thresholds shall be above'),
          learningRate: positive.describe('η of C_k ← C_k·exp(−η·(noised fraction within C_k − quantile))'),
          budgetFraction: positive.lt(1).describe('Share of σ⁻² that the counts of norms within the thresholds spent'),
          rescaleTo: positive.nullable().describe('√Σ C_k² that thresholds are brought to after each step; null: they are not'),
        }),
      }),
    ]).describe('Whether thresholds stay or follow noised counts'),
    allocation: z.enum(allocations).describe('How the noise was shared out between the groups; all choices are equally private'),
    groups: z.array(group).min(1).describe('The groups, which together hold every trainable parameter once'),
    rho: z.number().min(0).lt(1).describe('Rounding allowance: no record’s true clipped norm exceeds its threshold times 1 + rho'),
    sensitivity: positive.describe('L2 bound on what neighbours change in the first step’s clipped sum'),
  }).describe('How each record’s gradient was bounded'),
  noise: z.strictObject({
    kind: z.enum(noises).describe(
      '`discrete`: sums rounded to a public grid, discrete Gaussian noise of whole points added (docs/noise.md); `float`: real '
      + 'Gaussian noise, rounded to floating point',
    ),
    multiplier: positive.describe('σ of all that a step released: noise over what one record adds to it'),
    gradientMultiplier: positive.describe('σ_g, that of the gradients alone: σ⁻² = σ_g⁻² + K/(4σ_b²) + M/(4σ_m²), where there are K counts and M measures'),
    countDeviation: positive.nullable().describe(
      'σ_b on each of the K groups’ count of norms within its threshold, each record ±½; null where nothing was counted',
    ),
    countGrid: positive.nullable().describe('The grid of the counts in the first and every step; null under float noise or without counts'),
    rounding: z.number().min(0).lt(1).describe(
      'ν: what rounding sums to the grid and adding micro-batches up adds to what one record changes, relative to its '
      + 'threshold; all noise on gradients is larger by it, and that on counts by a factor of 1 + ν. 0 under float noise, where it is not accounted for',
    ),
    statisticalDistance: z.number().min(0).nullable().describe(
      'How far all noise of the planned steps is, at most, from what the accountant takes it for; null under float noise, where nobody knows',
    ),
    accountedDelta: positive.lt(1).describe('The δ that ε was computed at: δ less what (1 + e^ε)·statisticalDistance is within'),
    seeded: z.boolean().describe('True where the noise came from a user’s seed: whoever knows it can remove the noise'),
    source: z.string().describe('Where randomness came from'),
  }).describe('What was added to the clipped sums'),
  metrics: z.strictObject({
    budgetFraction: positive.lt(1).describe('Share of σ⁻² that all measures together spent: M/(4σ_m²)'),
    deviation: positive.describe('σ_m of the noise on each of the M sums, to which one record adds from −½ to ½'),
    grid: positive.nullable().describe('Distance of the grid’s points that these sums were rounded to; null under float noise'),
    measures: z.array(z.strictObject({
      name: z.string().describe('What was measured, as in metrics.jsonl'),
      low: z.number().describe('Each record’s number was cut to this at least'),
      high: z.number().describe('Each record’s number was cut to this at most'),
    })).min(1).describe('Numbers of the records whose noised means were released with every step'),
  }).nullable().describe('What of the training was released beside the gradients, within the same ε; null: nothing'),
  normaliser: positive.describe('What noised sums were divided by: the expected batch size, whatever was drawn'),
  steps: z.int().min(0).describe('Steps taken'),
  plannedSteps: z.int().positive().describe('Steps that the noise was calibrated for'),
  event: eventSchema.describe('Everything that was released; ε follows from it and δ alone'),
  releases: z.array(z.strictObject({
    folder: z.string().regex(/^epsilon-[0-9.e+-]+$/).describe('Folder of the run that has the model and a certificate of its own'),
    multiplier: positive.describe('σ of the noise on the sum that the model was made of'),
    epsilon: z.number().min(0).describe('ε of this model alone, were none of the others published'),
  })).min(1).nullable().describe(
    'The models of a run for several ε, the largest first: noise was added to one sum, and more noise to the release before for each '
    + 'further one, so that all together are post-processing of the first (docs/noise.md); null: the run made one model',
  ),
  partOf: z.strictObject({
    models: z.int().positive().describe('Models of the run'),
    multiplier: positive.describe('σ of the first of them, whose grid and noise are under all others'),
    epsilon: z.number().min(0).describe('ε of all models of the run together'),
  }).nullable().describe('For one model of a run for several ε, the run: the certificate is about this model alone; null: it is about all of a run'),
  accountant: z.enum(['pld', 'rdp', 'gdp', 'exact-gaussian']).describe('How ε was computed from the event (docs/accounting.md)'),
  errorBound: z.number().min(0).nullable().describe(
    'How far plannedEpsilon is above the true one at most, under the accountant’s own computation; null: not known',
  ),
  epsilon: z.number().min(0).describe('ε spent by the steps taken'),
  delta: positive.lt(1).describe('δ of the guarantee'),
  plannedEpsilon: z.number().min(0).describe('ε had all planned steps been taken'),
  ledger: z
    .strictObject({
      lines: z.int().min(0).describe('Lines of ledger.jsonl'),
      head: digest.describe('Chain digest of its last line (SHA-256, hex); 64 zeros where there is none'),
    })
    .nullable()
    .describe('The record of each step that the event is the sum of; null for a run that kept none'),
  assumptions: z.array(z.string()).describe('What the guarantee rests on'),
  notCovered: z.array(z.string()).describe('What the guarantee says nothing of'),
  software: z.record(z.string(), z.string()).describe('Versions by name'),
}).meta({
  title: 'Certificate of a differentially private training run',
  description: 'privacy.json of ghostgrad: what was released about the private data, and the (ε, δ) that bounds what it tells of one record.',
});

/** The certificate of a run, as `privacy.json` holds it. */
export type Certificate = z.infer<typeof certificateSchema>;

/** {@link certificateSchema} as a JSON schema (draft 2020-12), for other tools. */
export const certificateJsonSchema = (): object => {
  const { $schema, ...rest } = z.toJSONSchema(certificateSchema) as { readonly $schema: string };
  return { $schema, $id: `urn:${certificateFormat.replaceAll('/', ':')}`, ...rest };
};
