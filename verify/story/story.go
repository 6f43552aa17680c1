// Package story runs interleavings of database sessions that are described in text files, one scenario per file:
//
//	# what this shows
//	A: begin
//	A: insert into x values (1)
//	-> INSERT 0 1
//	B: insert into x values (1)
//	   on conflict do nothing
//	-> blocks
//	A: commit
//	B resumes
//	-> INSERT 0 0
//
// A line `A: statement` runs in session A; indented lines continue it, and `{schema}` in it is removed. Lines with `->`
// are the expected output: rows with bars between their columns, an error with its SQLSTATE, or `blocks` if it waits
// for a lock of another session of the story. `B resumes` waits for the end of the blocked statement; `B loses` does
// the same where Postgres ends it because of a deadlock. All other lines are comments.
package story

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

const (
	arrow  = "-> " // begins a line of output
	noRows = "no rows"

	deadlocked = "ERROR 40P01: " // begins the error of a statement that Postgres ends because of a deadlock
)

var (
	statementLine = regexp.MustCompile(`^([A-Z]): (.+)$`)
	resumeLine    = regexp.MustCompile(`^([A-Z]) (resumes|loses)$`)
)

// Run runs the story in file against db and compares the actual output with the expected one. With update it writes the
// actual output to the file instead.
func Run(t *testing.T, db *pgtest.DB, file string, update bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	p := &runner{t: t, db: db, sessions: map[string]*session{}}
	got := p.runAll(want)
	if update {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	for i := range max(len(want), len(got)) {
		w, g := line(want, i), line(got, i)
		if w != g {
			t.Fatalf("%s:%d: want\n\t%s\ngot\n\t%s\nthe whole story:\n%s", file, i+1, w, g,
				strings.Join(got, "\n"))
		}
	}
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(the end)"
}

type runner struct {
	t        *testing.T
	db       *pgtest.DB
	sessions map[string]*session
}

// session is a connection and its running statement.
type session struct {
	conn    *pgx.Conn
	running chan []string // receives the output of the running statement; nil: none
}

// runAll returns the lines of the story with the actual output of each statement.
func (p *runner) runAll(lines []string) []string {
	p.t.Helper()
	var got []string
	for i := 0; i < len(lines); {
		l := lines[i]
		got = append(got, l)
		i++
		var output []string
		if m := statementLine.FindStringSubmatch(l); m != nil {
			sql := m[2]
			for ; i < len(lines) && strings.HasPrefix(lines[i], " "); i++ {
				got = append(got, lines[i])
				sql += "\n" + lines[i]
			}
			output = p.run(m[1], sql)
		} else if m := resumeLine.FindStringSubmatch(l); m != nil {
			output = p.resume(m[1], m[2] == "loses")
		} else {
			continue
		}
		for _, o := range output {
			got = append(got, arrow+o)
		}
		for i < len(lines) && strings.HasPrefix(lines[i], strings.TrimSpace(arrow)) {
			i++
		}
	}
	for name, s := range p.sessions {
		if s.running != nil {
			p.t.Errorf("session %s blocks at the end: add `%s resumes`", name, name)
		}
	}
	return got
}

func (p *runner) run(name, sql string) []string {
	p.t.Helper()
	s := p.sessions[name]
	if s == nil {
		s = &session{conn: p.db.Connect(p.t)}
		p.sessions[name] = s
	}
	if s.running != nil {
		p.t.Fatalf("session %s blocks: add `%s resumes` before its next statement", name, name)
	}
	done := make(chan []string, 1)
	s.running = done
	ctx := p.t.Context()
	go func() { done <- execute(ctx, s.conn.PgConn(), strings.ReplaceAll(sql, "{schema}", "")) }()
	output := p.await(s)
	if n := len(output); n > 0 && strings.HasPrefix(output[n-1], deadlocked) {
		// It has waited, and Postgres has ended it before anybody has seen that.
		s.running = done
		done <- output
		return []string{"blocks"}
	}
	return output
}

func (p *runner) resume(name string, loses bool) []string {
	p.t.Helper()
	s := p.sessions[name]
	if s == nil || s.running == nil {
		p.t.Fatalf("session %s does not block", name)
	}
	if loses {
		output := <-s.running
		s.running = nil
		return output
	}
	return p.await(s)
}

// await returns the output of the session's statement, or "blocks" if it waits for another session of the story. Locks
// of other tests in the same server do not count.
func (p *runner) await(s *session) []string {
	p.t.Helper()
	var others []int32
	for _, o := range p.sessions {
		others = append(others, int32(o.conn.PgConn().PID()))
	}
	var output []string
	pgtest.Await(p.t, "the end or the block of a statement", func() (bool, error) {
		select {
		case output = <-s.running:
			s.running = nil
			return true, nil
		default:
		}
		var blocked bool
		err := p.db.Pool.QueryRow(p.t.Context(), "select pg_blocking_pids($1) && $2::int[]",
			int32(s.conn.PgConn().PID()), others).Scan(&blocked)
		if blocked {
			output = []string{"blocks"}
		}
		return blocked, err
	})
	return output
}

// hiddenTags are command tags without information. The ROLLBACK tag of a COMMIT is shown.
var hiddenTags = []string{"BEGIN", "COMMIT", "SET", "CREATE TABLE", "CREATE INDEX"}

func execute(ctx context.Context, conn *pgconn.PgConn, sql string) []string {
	results, err := conn.Exec(ctx, sql).ReadAll()
	var out []string
	for _, r := range results {
		if len(r.FieldDescriptions) == 0 {
			tag := r.CommandTag.String()
			if tag == "SELECT 0" { // pgconn has the columns of non-empty results only
				tag = noRows
			}
			if !slices.Contains(hiddenTags, tag) && tag != "" {
				out = append(out, tag)
			}
			continue
		}
		for _, row := range r.Rows {
			columns := make([]string, len(row))
			for i, v := range row {
				columns[i] = string(v)
				if v == nil {
					columns[i] = "null"
				}
			}
			out = append(out, strings.TrimRight(strings.Join(columns, " | "), " "))
		}
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return append(out, fmt.Sprintf("%s %s: %s", refused.Severity, refused.Code, refused.Message))
	}
	if err != nil {
		return append(out, err.Error())
	}
	return out
}
