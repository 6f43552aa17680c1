package pgstore

// A reserved block is never given again, even if its caller does not use it.
const sqlReserveBlock = `-- pgstore: reserve a block of numbers
insert into {schema}idempotency_block as b (name, next)
select $1::text, 1 + $2::bigint where set_config('synchronous_commit', replace(current_setting('synchronous_commit'),
	'off', 'on'), true) <> ''
on conflict (name) do update set next = b.next + $2::bigint
returning next - $2::bigint`
