package pgtx

import "testing"

func TestEnds(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{
		"commit": true, "COMMIT;": true, " \n\tCommit Work": true, "commit; begin": true, "; commit": true,
		"-- why\ncommit": true, "/* why */ end": true, "abort transaction": true, "rollback": true,
		"ROLLBACK TRANSACTION": true, "rollback and chain": true, "prepare transaction 'x'": true, "end;": true,
		"rollback/**/work": true,

		"": false, ";": false, "--": false, "/*": false, "rollback to a": false, "ROLLBACK TO SAVEPOINT sp1": false,
		"rollback work to savepoint a": false, "rollback -- all\n to a": false, "savepoint commit": false,
		"release savepoint a": false, "prepare p as select 1": false, "select 'commit'": false, "endless": false,
		"insert into commit values (1)": false, "begin": false, "$1": false,
	} {
		if got := Ends(query); got != want {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
}
