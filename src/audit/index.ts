export { type Audit, type AuditMethod, type AuditOptions, audit, auditMethods } from './audit.ts';
