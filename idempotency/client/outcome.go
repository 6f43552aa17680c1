package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Verdict is what is known of an intent after its attempts.
type Verdict int

const (
	// Unknown: it may have happened. Repeat it with the same key only, or look for what it would have made.
	Unknown Verdict = iota
	// Done: it happened, once.
	Done
	// NotDone: it certainly did not happen, and will not by this key's attempts.
	NotDone
)

// String names it.
func (v Verdict) String() string { return [...]string{"unknown", "done", "not done"}[v] }

// Error is the end of an intent without an answer.
type Error struct {
	// Key is the intent's: needed to repeat it.
	Key string
	// Attempts is how often it was tried.
	Attempts int
	// Definite says that no attempt can have reached the server: it did not happen.
	Definite bool
	Err      error
}

func (e *Error) Error() string {
	what := "whether it was done is not known"
	if e.Definite {
		what = "it was not done"
	}
	return fmt.Sprintf("after %d attempts (%s): %v", e.Attempts, what, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

type intentKey struct{}

// intent is what its attempts have shown so far.
type intent struct {
	key      string
	attempts int
	doubt    bool   // an attempt may have reached the server, and nothing since has said what became of it
	code     string // of the last answer, when it was a problem
	first    int    // its first_status
}

// Outcome says what an answer of a Transport, or of a http.Client over one, means for the intent. It does not read the body. Of an answer or error
// that comes from elsewhere it says Unknown, unless the status is a success or a definite refusal.
func Outcome(res *http.Response, err error) Verdict {
	var e *Error
	switch {
	case errors.As(err, &e) && e.Definite:
		return NotDone
	case err != nil || res == nil:
		return Unknown
	}
	i := &intent{}
	if res.Request != nil {
		if of, ok := res.Request.Context().Value(intentKey{}).(*intent); ok {
			i = of
		}
	}
	switch {
	case i.first != 0 || gone(i.code): // the problem tells what the first answer was
		if i.first >= 200 && i.first < 400 {
			return Done
		}
		return NotDone
	case res.StatusCode < 300 && !later(res, i.code):
		return Done
	case unheard(res.StatusCode), res.StatusCode == http.StatusNotFound && i.code == "" && res.Header.Get(headerReplayed) == "":
		if i.doubt {
			return Unknown // it was refused before anybody looked at what became of the earlier attempt, or by something in front of the service
		}
		return NotDone
	case res.StatusCode >= 500 || res.StatusCode == http.StatusRequestTimeout || later(res, i.code):
		return Unknown
	}
	return NotDone
}

// Key returns the key that an answer's intent had, empty if the answer is from elsewhere.
func Key(res *http.Response) string {
	if res != nil && res.Request != nil {
		return res.Request.Header.Get(HeaderKey)
	}
	return ""
}

// gone: it was finished, and the answer is no longer kept.
func gone(code string) bool {
	return code == "IDEMPOTENCY_RESULT_EXPIRED" || code == "IDEMPOTENCY_RESPONSE_NOT_KEPT"
}

// unheard are refusals that come before anything is looked up: they say nothing of an earlier attempt.
func unheard(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusProxyAuthRequired, http.StatusLengthRequired, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
		http.StatusTooEarly, http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge, http.StatusMisdirectedRequest:
		return true
	}
	return false
}

// later tells whether an answer says that the request is being worked at.
func later(res *http.Response, code string) bool {
	switch res.StatusCode {
	case http.StatusAccepted:
		return res.Header.Get("Retry-After") != ""
	case http.StatusConflict:
		return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "" && res.Header.Get("Retry-After") != ""
	}
	return code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || code == "IDEMPOTENCY_OUTCOME_UNKNOWN"
}

// judge looks at an attempt: whether another one may help, and after what time at the earliest.
func (i *intent) judge(res *http.Response, err error) (again bool, after time.Duration) {
	if err != nil {
		i.doubt = i.doubt || !unsent(err)
		return true, 0
	}
	i.look(res)
	switch res.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests:
		again = true
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again, i.doubt = true, true
	default:
		again = later(res, i.code)
		i.doubt = i.doubt || again
	}
	return again, retryAfter(res)
}

// look reads the code of a problem, and leaves the body as it was.
func (i *intent) look(res *http.Response) {
	i.code, i.first = "", 0
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		return
	}
	const most = 64 << 10
	head, err := io.ReadAll(io.LimitReader(res.Body, most))
	from := io.MultiReader(bytes.NewReader(head), res.Body)
	if err != nil {
		from = io.MultiReader(bytes.NewReader(head), failing{err})
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{from, res.Body}
	var p struct {
		Code  string `json:"code"`
		First int    `json:"first_status"`
	}
	if json.Unmarshal(head, &p) == nil {
		i.code, i.first = p.Code, p.First
	}
}

type failing struct{ err error }

// Read is of io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// unsent tells whether an error came before a connection was there.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// retryAfter is what the header says, in seconds or as a date; the date counts from the server's own.
func retryAfter(res *http.Response) time.Duration {
	text := res.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	now, unsaid := http.ParseTime(res.Header.Get("Date"))
	if err != nil || unsaid != nil {
		return 0
	}
	return max(0, at.Sub(now))
}

// end is the last attempt's answer as the caller gets it.
func (i *intent) end(res *http.Response, err error) (*http.Response, error) {
	if err != nil {
		return nil, &Error{Key: i.key, Attempts: i.attempts, Definite: !i.doubt, Err: err}
	}
	return res, nil
}
