
-- Services that answer requests, and recovery.
grant select on effectonce_migration to {role}_idempotency;
grant select, insert, update, delete on idempotency_key to {role}_idempotency;
grant execute on function idempotency_key_valid to {role}_idempotency;
grant usage on sequence idempotency_fence to {role}_idempotency;
grant select, insert, update on idempotency_block to {role}_idempotency;
-- What people did is written and read, and never changed.
grant select, insert on idempotency_audit to {role}_idempotency;
