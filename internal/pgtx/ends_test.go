package pgtx

import "testing"

func TestEnds(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{
		"commit": true, "COMMIT;": true, " \n\tCommit Work": true, "commit; begin": true, "; commit": true,
		"-- why\ncommit": true, "/* why */ end": true, "abort transaction": true, "rollback": true,
		"ROLLBACK TRANSACTION": true, "rollback and chain": true, "prepare transaction 'x'": true, "end;": true,
		"rollback/**/work": true, "insert into t values (1); commit; begin": true, "select 1;\n/* ; */ abort": true,
		"select 'it''s; '; end": true, "select $$;$$; commit": true, "select e'\\';'; commit": true,
		"select /* /* ; */ */ 1; rollback": true, `select ";"; commit`: true, "select $a$;$$;$a$; commit": true,

		"": false, ";": false, "--": false, "/*": false, "rollback to a": false, "ROLLBACK TO SAVEPOINT sp1": false,
		"rollback work to savepoint a": false, "rollback -- all\n to a": false, "savepoint commit": false,
		"release savepoint a": false, "prepare p as select 1": false, "select 'commit'": false, "endless": false,
		"insert into t values ('a; commit')": false, "select $$; commit; $$": false, "select 1 -- ; commit": false,
		"select $1; select 2": false, "select /* ; commit */ 1;": false, `select "; commit"`: false,
		"do $body$ begin; commit; end $body$": false, "select e'\\'; commit'": false, "select a$1; select b$1": false,
		"insert into commit values (1)": false, "begin": false, "$1": false,
	} {
		if got := Ends(query); got != want {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	tx, session := effects{sets: true}, effects{sets: true, lasts: true}
	for query, want := range map[string]effects{
		"declare c cursor for select 1": tx, "declare c cursor with hold for select 1": session,
		"prepare p as select 1": session,

		"set local role tenant": tx, "SET LOCAL search_path = a": tx, "set transaction read only": tx,
		"select set_config('app.tenant', $1, true)": tx, "select 1; set local work_mem = '1MB'": tx,
		"set constraints all deferred": tx, "create temp table x (a int) on commit drop": tx,

		"start transaction read only": tx, "begin isolation level read committed": tx,
		"select set_config('a', coalesce($1, ''), TRUE ), set_config('b', $2, is_local => true)": tx,

		"update pg_settings set setting = '1MB' where name = 'work_mem'": session, "select * from pg_settings": {},
		"select set_config('app.tenant', $1, false)": session, "select set_config('app.tenant', $1, $2)": session,
		"select set_config('a', $1, true), set_config('b', $2, false)":   session,
		"with a as (select set_config('a', 'b', false)) select * from a": session,
		"select set_config('a', $1, false) where coalesce($2, true)":     session,
		"create local temp table x (a int)":                              session,
		"create or replace temp view x as select 1":                      session,
		"create table pg_temp.x (a int)":                                 session, "select 1 as a into temp x": session,
		"explain analyze create temp table x as select 1": session, "deallocate all": session,
		"do $$ begin set local role tenant; end $$":           session,
		"do $$ begin if a then\n\treset role; end if; end $$": session,

		"set role tenant": session, "set session work_mem = '1MB'": session, "reset all": session, "listen a": session,
		"discard all": session, "create temporary table x (a int)": session,
		"select pg_advisory_lock(1)": session, "select pg_try_advisory_lock_shared(1)": session,

		"begin": {}, "do $$ begin update t set a = 1; end $$": {}, "insert into temp (a) values (1)": {},
		"select temp from temp": {}, "update t set a = 1": {}, "select pg_advisory_xact_lock(1)": {},
		"insert into settings values (1)": {},
		"create table x (a int)":          {}, "select 'set role x'": {},
	} {
		if got := look(query); got != want {
			t.Errorf("%q: %+v, want %+v", query, got, want)
		}
	}
}
