package ui

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/effectonce/effectonce/ui/internal/reads"
)

// times lists the accepted forms of a time; UTC is the default.
var times = []string{
	time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly,
}

func parseTime(text string) (time.Time, error) {
	for _, layout := range times {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, &refusal{
		http.StatusBadRequest, "This time cannot be read",
		"Write it as 2026-01-02 15:04 or 2026-01-02T15:04:05Z. It is UTC.",
	}
}

// filter is the filter of the list.
type filter struct {
	Topic, Key, Code, Kind, Consumer string
	OlderThan                        time.Duration
	After                            int64
}

func (q *request) filter() (f filter, err error) {
	form := q.URL.Query()
	f = filter{
		Topic: form.Get("topic"), Key: form.Get("key"), Code: form.Get("code"), Kind: form.Get("kind"),
		Consumer: form.Get("consumer"),
	}
	if text := form.Get("older"); text != "" {
		if f.OlderThan, err = time.ParseDuration(text); err != nil || f.OlderThan < 0 {
			return f, &refusal{http.StatusBadRequest, "This filter cannot be read", "Write an age as 10m or 2h."}
		}
	}
	if text := form.Get("after"); text != "" {
		if f.After, err = strconv.ParseInt(text, 10, 64); err != nil {
			return f, notFound("A page begins after an event's id.")
		}
	}
	return f, nil
}

// Older returns the age for the form.
func (f filter) Older() string {
	if f.OlderThan == 0 {
		return ""
	}
	return f.OlderThan.String()
}

// readForm reads query and form. It refuses repeated fields and malformed input, of which only a part would count.
func (q *request) readForm() error {
	err := q.ParseForm()
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &refusal{http.StatusRequestEntityTooLarge, "This form is too large", "Use the relay command."}
	}
	if err != nil || q.Method == http.MethodPost && len(q.PostForm) == 0 {
		return errForm
	}
	for _, values := range q.Form {
		if len(values) > 1 {
			return errForm
		}
		if !utf8.ValidString(values[0]) || strings.ContainsRune(values[0], 0) {
			return errForm // no text of Postgres has a NUL
		}
	}
	return nil
}

// id returns the event's id from the path.
func (q *request) id() (int64, error) {
	id, err := strconv.ParseInt(q.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		return 0, notFound("An event's id is a number.")
	}
	return id, nil
}

// reason returns the form's reason, which every change needs.
func (q *request) reason() (string, error) {
	reason := strings.TrimSpace(q.PostForm.Get("reason"))
	if reason == "" {
		return "", &refusal{
			http.StatusUnprocessableEntity, "A reason is missing",
			"Nothing was changed. Go back and say why, in a few words: it goes into the audit.",
		}
	}
	return reason, nil
}

// kinds lists the kinds of parked events, by side.
var kinds = map[string][]string{
	reads.InOutbox: {"refused", "behind"}, reads.InInbox: {"failed", "behind", "quarantined"},
}

// mostAtOnce bounds how many failures a verb changes.
const mostAtOnce = 1000
