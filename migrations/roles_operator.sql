
-- The pages and the commands of operators may do what the others may.
do $$ declare name text; begin
	foreach name in array array[{operates}] loop
		execute format('grant %I to {role}_operator', name);
	end loop;
end $$;

-- Other roles' sessions: who forgot a transaction, and what a worker runs.
do $$ begin
	grant pg_read_all_stats to {role}_operator;
exception when insufficient_privilege then
	raise warning 'an administrator must run: grant pg_read_all_stats to {role}_operator; without it the pages do not see the sessions of other roles';
end $$;
