-- +goose Up
-- What a row can be. Postgres reads and plans the text of a check constraint again in each statement, and for one row that took twice as long as
-- everything else; a function's text it plans once a session.
-- +goose StatementBegin
create function idempotency_key_valid(state text, stage text, fingerprint bytea, failure text, lease_until timestamptz, due_at timestamptz,
	finished_at timestamptz, body_until timestamptz, forget_at timestamptz, input bytea, header jsonb, body bytea) returns boolean
language plpgsql immutable parallel safe as $$
begin
	return state in ('IN_PROGRESS', 'COMPLETED', 'FAILED_REPLAYABLE', 'UNKNOWN_REQUIRES_RECOVERY', 'EXPIRED')
		and octet_length(fingerprint) = 32
		and stage in ('', 'RECEIVED', 'LOCAL_CREATED', 'PROVIDER_REQUEST_SENT', 'PROVIDER_CONFIRMED', 'COMPLETED', 'UNKNOWN_REQUIRES_RECOVERY')
		-- A lease without an end would never be recovered.
		and case state when 'IN_PROGRESS' then lease_until is not null and due_at is not null
			when 'UNKNOWN_REQUIRES_RECOVERY' then lease_until is null or due_at is not null else lease_until is null and due_at is null end
		-- What is open has no end: nothing of it goes because of its age.
		and case when state in ('COMPLETED', 'FAILED_REPLAYABLE', 'EXPIRED') then finished_at is not null and input is null
			else finished_at is null and body_until is null and forget_at is null and header is null and body is null end
		and (body_until is null or forget_at is null or body_until <= forget_at)
		and (failure = '' or state in ('FAILED_REPLAYABLE', 'EXPIRED'))
		and (state <> 'EXPIRED' or header is null and body is null and body_until is null);
end $$;
-- +goose StatementEnd

-- What became of each idempotency key: one row a key, whoever works at it.
--
-- A guard's row changes three or four times in its life, InTx writes its own once. Only open rows are in the index of what is open, so it
-- stays as small as the work under way; the other one holds what has an end.
create table idempotency_key (
	tenant      text collate "C" not null,
	operation   text collate "C" not null,
	key         text collate "C" not null,
	state       text collate "C" not null, -- no row is FAILED_RETRYABLE: then the key is free
	fingerprint bytea not null, -- of the command: SHA-256 of its canonical form
	fingerprint_version smallint not null,
	attempts    integer not null default 0, -- how often recovery took it
	fence       bigint not null, -- rises with every owner
	token       text collate "C" not null, -- of the attempt that has it, or had it last
	created_at  timestamptz not null default clock_timestamp(),
	lease_until timestamptz, -- while somebody has it: the owner, or in UNKNOWN_REQUIRES_RECOVERY a recoverer
	due_at      timestamptz, -- from when on recovery may take it; null in UNKNOWN_REQUIRES_RECOVERY: a person has to look
	finished_at timestamptz,
	body_until  timestamptz, -- null: the body stays as long as the row
	forget_at   timestamptz, -- when the row goes; null: never
	code        integer not null default 0,
	schema_version integer not null default 0,
	stage       text collate "C" not null default 'RECEIVED',
	failure     text collate "C" not null default '',
	resource    text collate "C" not null default '',
	reason      text not null default '',
	steps       jsonb, -- recovery points, in the order in which they were begun
	input       bytea, -- what recovery needs to go on; gone with the completion
	header      jsonb,
	body        bytea,
	primary key (tenant, operation, key),
	constraint idempotency_key_valid check (idempotency_key_valid(state, stage, fingerprint, failure, lease_until, due_at, finished_at, body_until, forget_at, input, header, body))
) with (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
	-- A table that was vacuumed or analyzed when it had a page or two has its plans made for reading all of it, and keeps them while it grows.
	autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = 5000, autovacuum_analyze_threshold = 5000);
create index idempotency_key_open on idempotency_key (due_at) where state in ('IN_PROGRESS', 'UNKNOWN_REQUIRES_RECOVERY');
-- When a row's next end comes: its body's, or else its own. A body never outlives its row.
create index idempotency_key_overdue on idempotency_key (coalesce(body_until, forget_at)) where coalesce(body_until, forget_at) is not null;

-- Fences are drawn here and not counted in the row: they rise over a release and over the end of a tombstone, too.
create sequence idempotency_fence;

-- Hi/Lo: the next number that nobody has been given, by name.
create table idempotency_block (
	name text collate "C" primary key,
	next bigint not null check (next > 0)
) with (fillfactor = 50);

-- Which binaries this schema serves, by the newest migration that they know: a later migration that leaves some behind raises it.
comment on table idempotency_key is 'effectonce: binaries from 30001 on';
