// Package story runs interleavings of database sessions that are written down as text, one scenario a file:
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
// A line `A: statement` runs in session A; indented lines continue it, and `{schema}` in it is left out. Lines with
// `->` are what came of it: rows with their columns between bars, an error with its SQLSTATE, or `blocks` when it waits
// for a lock of another session of the story. `B resumes` waits for the end of what blocked; `B loses` does so where
// only the database can end it, in a deadlock. Everything else is prose.
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
)

var (
	statementLine = regexp.MustCompile(`^([A-Z]): (.+)$`)
	resumeLine    = regexp.MustCompile(`^([A-Z]) (resumes|loses)$`)
)

// Run plays the story in file against db and compares what happened with what it says, line by line. With update it
// writes what happened into the file instead.
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
			t.Fatalf("%s:%d: the story says\n\t%s\nbut it came to\n\t%s\nall of it:\n%s", file, i+1, w, g,
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

// session is one connection and what it is doing.
type session struct {
	conn    *pgx.Conn
	running chan []string // nil: nothing; else gets the output of the statement that blocked
}

// runAll returns the lines of the story with what really came of each statement.
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
			p.t.Errorf("session %s still blocks at the end: write `%s resumes`", name, name)
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
		p.t.Fatalf("session %s blocks: write `%s resumes` before its next statement", name, name)
	}
	done := make(chan []string, 1)
	s.running = done
	ctx := p.t.Context()
	go func() { done <- execute(ctx, s.conn.PgConn(), strings.ReplaceAll(sql, "{schema}", "")) }()
	return p.await(s)
}

func (p *runner) resume(name string, deadlocked bool) []string {
	p.t.Helper()
	s := p.sessions[name]
	if s == nil || s.running == nil {
		p.t.Fatalf("session %s blocks on nothing that could resume", name)
	}
	if deadlocked {
		output := <-s.running
		s.running = nil
		return output
	}
	return p.await(s)
}

// await returns what the session's statement came to, or "blocks" once Postgres says that it waits for one of the
// others. Locks of other tests in the same server pass by themselves and do not count.
func (p *runner) await(s *session) []string {
	p.t.Helper()
	var others []int32
	for _, o := range p.sessions {
		others = append(others, int32(o.conn.PgConn().PID()))
	}
	var output []string
	pgtest.Await(p.t, "end or wait of a statement", func() (bool, error) {
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

// quiet are the command tags that say nothing. The ROLLBACK that answers a COMMIT says much.
var quiet = []string{"BEGIN", "COMMIT", "SET", "CREATE TABLE", "CREATE INDEX"}

func execute(ctx context.Context, conn *pgconn.PgConn, sql string) []string {
	results, err := conn.Exec(ctx, sql).ReadAll()
	var out []string
	for _, r := range results {
		if len(r.FieldDescriptions) == 0 {
			tag := r.CommandTag.String()
			if tag == "SELECT 0" { // pgconn names the columns only of a result that has rows
				tag = noRows
			}
			if !slices.Contains(quiet, tag) && tag != "" {
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
