package ui_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/ui"
)

// TestManyDatabases: more than five are a table with a line for each, the worst first, and one that is away keeps no
// page from the others.
func TestManyDatabases(t *testing.T) {
	t.Parallel()
	db, ill := outboxDB(t), outboxDB(t)
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	park(t, ill, "k", "{}")
	var list []ui.Database
	for i := range 5 {
		list = append(list, of(fmt.Sprintf("shop-%d", i), db))
	}
	list = append(list, of("ill", ill), ui.Database{Name: "gone", Pool: pool})
	s := serve(t, ui.Config{}, list...)
	var page string
	pgtest.Await(t, "the doctor has looked at all", func() (bool, error) {
		page = s.get("/")
		return !strings.Contains(page, ">looking<"), nil
	})
	rows := regexp.MustCompile(`(?s)<tr[^>]*>\s*<th scope="row">.*?</tr>`).FindAllString(page, -1)
	if len(rows) != len(list) || strings.Contains(page, "<svg") {
		t.Fatalf("%d lines of %d databases:\n%s", len(rows), len(list), page)
	}
	first := words(rows[0])
	if !strings.HasPrefix(first, "gone away") || !strings.Contains(first, "It does not answer in time.") {
		t.Errorf("the first is %s", first)
	}
	if n := strings.Count(page, `href="`+prefix+`/db/shop-`); n != 5 {
		t.Errorf("%d lead to their own page", n)
	}
	wants(t, page, "gone: the database", "Database State Backlog Oldest In Out Held Refused What is wrong",
		"away – – – – – –")
	page = s.get("/db/ill")
	wants(t, page, "All databases", "Refused 1 event 1 key blocked")
	lacks(t, page, "shop-")
	if status, _ := s.do(s.request(http.MethodGet, "/db/none", nil)); status != http.StatusNotFound {
		t.Errorf("a database that is none: %d", status)
	}
}
