package story

import (
	"flag"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
)

var update = flag.Bool("update", false, "write the actual output to the stories")

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestStories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			Run(t, pgtest.New(t, migrations.Outbox, migrations.Inbox), file, *update)
		})
	}
}

// TestRunReturnsActualOutput: runAll replaces a wrong expected output.
func TestRunReturnsActualOutput(t *testing.T) {
	t.Parallel()
	p := &runner{t: t, db: pgtest.New(t), sessions: map[string]*session{}}
	got := p.runAll(strings.Split(`prose
A: create table x (i int)
-> not this
A: begin; lock table x
B: select i from x
-> 1
A: insert into x values (7), (null); commit
B resumes
-> blocks
B: select 1/0`, "\n"))
	want := strings.Split(`prose
A: create table x (i int)
A: begin; lock table x
-> LOCK TABLE
B: select i from x
-> blocks
A: insert into x values (7), (null); commit
-> INSERT 0 2
B resumes
-> 7
-> null
B: select 1/0
-> ERROR 22012: division by zero`, "\n")
	if !slices.Equal(got, want) {
		t.Fatalf("got\n%s", strings.Join(got, "\n"))
	}
}
