import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { ClippingOptions } from '../clipping/norm.ts';
import { GhostgradError } from '../errors.ts';
import { parseWith } from '../parse.ts';
import { type PrivacyPlan, certificateSchema, privacyPlan } from '../privacy/index.ts';
import type { Engine } from '../runtime/engine.ts';
import { clippingSchema } from '../training/clipping.ts';
import type { TrainingInput } from '../training/materials.ts';
import { parseYaml, readRecipeFile } from '../training/recipe-file.ts';
import { prepare } from '../training/train.ts';
import { type GradientAudit, auditGradients } from './gradient-audit.ts';
import { type LossAudit, auditLosses } from './loss-audit.ts';

/** How an audit looks for what a run gives away. */
export const auditMethods = ['gradient-canary', 'one-run'] as const;
export type AuditMethod = (typeof auditMethods)[number];

export interface AuditOptions {
  readonly engine: Engine;
  /** Default `gradient-canary`: see {@link auditGradients}; `one-run`: see {@link auditLosses}. */
  readonly method?: AuditMethod | undefined;
  /** Canaries in all. */
  readonly canaries?: number | undefined;
  readonly confidence?: number | undefined;
  readonly seed?: number | string | undefined;
  readonly onStep?: ((step: number, steps: number) => void) | undefined;
}

export type Audit = (GradientAudit | LossAudit) & { readonly method: AuditMethod };

/**
 * Audits what a recipe file, or the certificate in a run folder, claims.
 *
 * @throws GhostgradError for what the user can mend
 */
export async function audit(path: string, options: AuditOptions): Promise<Audit> {
  const { method = 'gradient-canary', canaries, ...rest } = options;
  const { confidence = 0.999 } = options;
  if (!(confidence > 0 && confidence < 1)) {
    throw new GhostgradError({ what: 'confidence is out of range', where: 'confidence', found: String(confidence), expected: 'more than 0 and less than 1' });
  }
  const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
  const file = isFolder ? join(path, 'recipe.yaml') : path;
  if (method === 'one-run') {
    const recipe = readRecipeFile(file) as unknown as TrainingInput;
    return { method, ...(await auditLosses({ recipe, file, canaries, ...rest })) };
  }
  const certified = join(path, 'privacy.json');
  const claim = isFolder && existsSync(certified) ? certifiedClaim(certified, file) : await claimOfRecipe(file, options.engine);
  return { method, ...(await auditGradients({ ...claim, trials: canaries, ...rest })) };
}

interface Claim {
  readonly plan: PrivacyPlan;
  readonly clipping: Pick<ClippingOptions, 'function' | 'gamma'>;
  readonly epsilonClaimed: number;
}

/** What a certificate says; how gradients were clipped is in the recipe beside it. */
function certifiedClaim(path: string, recipe: string): Claim {
  const { sampling, clipping, noise, ...certificate } = parseWith(certificateSchema, parseYaml(readFileSync(path, 'utf8'), path), path);
  const { threshold } = clipping;
  const plan = privacyPlan({
    datasetSize: sampling.datasetSize, batchSize: sampling.expectedBatchSize, sampling: sampling.name,
    ...(sampling.maxBatchSize !== null && { maxBatchSize: sampling.maxBatchSize }),
    steps: certificate.plannedSteps, delta: certificate.delta, accountant: certificate.accountant, neighbors: certificate.neighbors,
    noiseMultiplier: noise.multiplier, noise: noise.kind, groups: clipping.groups, allocation: clipping.allocation, rho: clipping.rho,
    adaptive: threshold === 'fixed' ? undefined : threshold.adaptive,
  });
  return {
    plan, clipping: parseWith(clippingSchema, readRecipeFile(recipe)['clipping'] ?? {}, `${recipe}: clipping`),
    epsilonClaimed: certificate.plannedEpsilon,
  };
}

/** What a run of the recipe would claim. Nothing is trained, and nothing measured. */
async function claimOfRecipe(file: string, engine: Engine): Promise<Claim> {
  const { output: _, ...recipe } = readRecipeFile(file) as unknown as TrainingInput;
  const run = await prepare({ ...recipe, performance: { ...recipe.performance, microBatch: 1 } }, { file, engine });
  await run.release();
  const { plan, recipe: { clipping } } = run;
  if (plan !== null) return { plan, clipping, epsilonClaimed: plan.epsilon };
  throw new GhostgradError({
    what: 'the recipe claims no ε', where: `${file}: privacy`, found: 'none', expected: 'epsilon or noiseMultiplier', fix: 'there is nothing to audit',
  });
}
