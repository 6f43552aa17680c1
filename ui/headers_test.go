package ui_test

import (
	"encoding/base64"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/ui"
)

var headerFields = regexp.MustCompile(`name="(washeaders|wastype|before|type)" value="([^"]*)"`)

// headerForm are the fields of the headers' form, and those of what it previews.
func headerForm(page string) map[string]string {
	_, form, _ := strings.Cut(page, "/headers/")
	found := map[string]string{}
	for _, m := range headerFields.FindAllStringSubmatch(form, -1) {
		found[m[1]] = html.UnescapeString(m[2])
	}
	return found
}

// linesOf are the headers that a form had.
func linesOf(t *testing.T, form map[string]string) string {
	t.Helper()
	lines, err := base64.StdEncoding.DecodeString(form["washeaders"])
	if err != nil {
		t.Fatal(err)
	}
	return string(lines)
}

// TestEditHeaders: headers and content type are shown as a diff, changed as they were shown, and not when somebody else
// has changed them meanwhile.
func TestEditHeaders(t *testing.T) {
	t.Parallel()
	db := outboxDB(t)
	s := serve(t, ui.Config{}, of("orders", db))
	id := park(t, db, "k", "canary-payload")
	_, page := s.post(eventPath(id) + "/reveal")
	was := headerForm(page)
	if lines := linesOf(t, was); lines != "who=canary-header\n" {
		t.Fatal(lines)
	}
	wants(t, page, "who=canary-header")
	const after = "a=1=2\r\nwho=a <i>\r\n"
	preview := func(contentType, headers string) (int, string) {
		return s.post(eventPath(id)+"/headers/preview", "washeaders", was["washeaders"], "wastype", was["wastype"],
			"type", contentType, "headers", headers)
	}
	status, page := preview("text/plain", after)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	wants(t, page, "- content-type=application/json", "- who=canary-header", "+ content-type=text/plain", "+ a=1=2",
		"+ who=a <i>", "--header=a=1=2 --header='who=a <i>' --content-type=text/plain --reason")
	lacks(t, page, "<i>")
	change := func(page string) (int, string) {
		form := headerForm(page)
		return s.post(eventPath(id)+"/headers/edit", "before", form["before"], "type", form["type"], "headers", after)
	}
	if status, result := change(page); status != http.StatusOK {
		t.Fatalf("%d %s", status, result)
	}
	if got := pgtest.One[string](t, db, `select content_type || headers::text || convert_from(payload, 'UTF8')
		from outbox_parked`); got != `text/plain{"a": "1=2", "who": "a <i>"}canary-payload` {
		t.Error(got)
	}
	status, result := change(page)
	if status != http.StatusConflict {
		t.Errorf("a form of before: %d %s", status, result)
	}
	for headers, says := range map[string]string{
		"ce_id=x": "reserved", "novalue": "name=value", "a=1\na=2": "stands there twice", "=x": "name=value",
	} {
		status, page := preview("text/plain", headers)
		if status != http.StatusUnprocessableEntity || !contains(page, says) {
			t.Errorf("%q: %d %s", headers, status, page)
		}
	}
	_, page = preview("", "who=canary-header")
	wants(t, page, "Nothing is changed.")
	if audited(t, db, "edit parked") != 1 {
		t.Error("the audit is not as it should be")
	}
	db.Exec(t, `update outbox_parked set headers = '{"x": "two\nlines"}'`)
	_, page = s.post(eventPath(id) + "/reveal")
	lacks(t, page, "Edit headers and content type")
}

// TestEditHeadersOfAnInbox: a record's own headers change, those of effectonce stay.
func TestEditHeadersOfAnInbox(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Inbox)
	failed(t, db, "k")
	s := serve(t, ui.Config{}, of("ledger-db", db))
	id := pgtest.One[int64](t, db, `select id from inbox_parked`)
	path := fmt.Sprintf("/db/ledger-db/inbox/events/%d", id)
	was := func() map[string]string {
		t.Helper()
		status, page := s.post(path + "/reveal")
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, page)
		}
		wants(t, page, "ce_id")
		return headerForm(page)
	}
	form := was()
	_, page := s.post(path+"/headers/preview", "washeaders", form["washeaders"], "wastype", form["wastype"],
		"type", form["type"], "headers", "mended=yes")
	wants(t, page, "+ mended=yes")
	before := headerForm(page)["before"]
	for _, want := range []int{http.StatusOK, http.StatusConflict} {
		if status, page := s.post(path+"/headers/edit", "before", before, "type", form["type"], "headers",
			"mended=yes"); status != want {
			t.Errorf("%d %s", status, page)
		}
	}
	if lines := linesOf(t, was()); lines != "mended=yes\n" {
		t.Error(lines)
	}
}
