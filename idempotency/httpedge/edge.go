package httpedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/keys"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

// Edge has the settings of answers. The zero value is ready to use.
type Edge struct {
	// Types is the prefix of a problem's type, the URL of your own page; the code in lower case follows. Default: this
	// project's page about idempotency.
	Types string
	// Status overrides the statuses of codes, for example 409 for CodeKeyReused. Default: Codes.
	Status map[Code]int
	// Policy is the header Idempotency-Policy of every answer, from the function Policy: the draft requires publishing
	// the expiry. Default: no header.
	Policy string
	// RetryInProgress is the maximum Retry-After during another attempt, if less than the rest of its lease. Default
	// 2 s, because most attempts end long before their lease.
	RetryInProgress time.Duration
	// RetryUnknown is the Retry-After while the outcome is unknown, about the duration of recovery. Default 15 s.
	RetryUnknown time.Duration
	// StatusURL is the request's operation-status resource, see At and StatusHandler. With it, the answer during
	// another attempt or an unknown outcome is 202 with this Location. Default: 409 and 503.
	StatusURL string
	// Headers are stored and replayed in addition to Content-*, Location, Link, ETag and a few more. Date, Set-Cookie,
	// credentials and headers of the connection never are.
	Headers []string
	// MaxBody is the maximum size of a stored body, in bytes: of JSON, Kept and the middleware. Default 1 MiB;
	// negative: any.
	MaxBody int
	// Redact removes data from a result before it is stored by JSON, Kept and the middleware. The first caller does not
	// get the data either; to hide data from readers of the store only, use a Sealer. It must not change Code. Default:
	// none.
	Redact func(res *idempotency.Result)
	// OnReplay may add headers to a replayed answer. Default: none.
	OnReplay func(h http.Header, res idempotency.Result)
	// Logger logs errors that no client should see; never keys or bodies. Default slog.Default().
	Logger *slog.Logger
}

// Policy returns a header with the seconds for which the answer of a completed request is replayed, and its key is
// kept: "replay=86400, remember=259200". A name without a number means for ever.
func Policy(keep idempotency.Retention) string {
	seconds := func(name string, d time.Duration) string {
		if d < 0 {
			return name
		}
		return fmt.Sprintf("%s=%d", name, int64(d/time.Second))
	}
	body, tombstone := keep.Terms()
	return seconds("replay", body) + ", " + seconds("remember", tombstone)
}

// At returns the edge for a request with this operation-status resource.
func (e Edge) At(url string) Edge {
	e.StatusURL = url
	return e
}

// Write answers with the zero Edge.
func Write(w http.ResponseWriter, res idempotency.Result, err error) { Edge{}.Write(w, res, err) }

// Write answers a request with the result or the error of a guard, InTx or Key. An error is answered with a problem: a
// *Problem with itself, an error of package idempotency with its code, any other with 500; it is only in the log.
func (e Edge) Write(w http.ResponseWriter, res idempotency.Result, err error) {
	class, _ := outcome.Of(err)
	if err == nil || class == outcome.ClassTerminal && (res.Code != 0 || res.Failure != "") {
		e.answer(w, res)
		return
	}
	if errors.Is(err, guard.ErrUnrecorded) && res.Code != 0 {
		// It is done, with this answer; only a retry may have to wait for recovery.
		e.log().Error("a request was done, and its answer may not be recorded", "error", err)
		e.answer(w, res)
		return
	}
	var problem *Problem
	var unknown *idempotency.UnknownError
	var wrong *keys.WrongRegionError
	switch {
	case errors.As(err, &unknown): // even if a Problem of the work is the cause
		e.unknown(w, *unknown)
	case errors.As(err, &problem):
		e.Problem(w, *problem)
	case errors.Is(err, ErrNoKey):
		e.Problem(w, Problem{Code: CodeKeyMissing, Detail: "this operation needs the header " + HeaderKey +
			": a key of 1 to 255 printable ASCII characters, new for each intent and kept for its retries"})
	case errors.Is(err, keys.ErrOutsideWindow):
		e.Problem(w, Problem{Code: CodeKeyOutsideWindow, Detail: err.Error()})
	case errors.Is(err, idempotency.ErrInvalidKey):
		e.Problem(w, Problem{Code: CodeKeyInvalid, Detail: err.Error()})
	case errors.Is(err, idempotency.ErrInvalidCommand):
		e.Problem(w, Problem{Code: CodeBadRequest, Detail: err.Error()})
	case errors.Is(err, idempotency.ErrMismatch):
		e.mismatch(w, err)
	case errors.Is(err, idempotency.ErrInProgress):
		e.inProgress(w, err)
	case errors.Is(err, idempotency.ErrExpired):
		e.expired(w, err)
	case errors.As(err, &wrong):
		e.wrongRegion(w, wrong)
	case errors.Is(err, idempotency.ErrUnknown), errors.Is(err, store.ErrLeaseLost),
		errors.Is(err, guard.ErrUnrecorded):
		e.unknown(w, idempotency.UnknownError{})
	case class == outcome.ClassUnknown: // not logged yet
		e.log().Error("the outcome of a request is unknown", "error", err)
		e.unknown(w, idempotency.UnknownError{})
	case class == outcome.ClassRetryable, errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled):
		w.Header().Set("Retry-After", "1")
		e.log().Warn("a request was not finished", "error", err)
		e.Problem(w, Problem{Code: CodeTryAgain, Detail: "the request was not finished: repeat it with the same " +
			"Idempotency-Key"})
	default:
		e.log().Error("a request failed", "error", err)
		e.Problem(w, Problem{Code: CodeInternal, Detail: "the server failed; a retry with the same " +
			"Idempotency-Key is done at most once"})
	}
}

func (e Edge) answer(w http.ResponseWriter, res idempotency.Result) {
	if reason := res.Header[headerNotKept]; len(reason) > 0 {
		e.Problem(w, Problem{
			Code: CodeNotKept, FirstStatus: res.Code, Failure: res.Failure, Resource: res.Resource,
			Detail: "the request was done, and its answer was not kept (" + reason[0] + ")",
		})
		return
	}
	if res.Code == 0 {
		res.Code = http.StatusNoContent
		if len(res.Body) > 0 {
			res.Code = http.StatusOK
		}
		if res.Failure != "" {
			if res.Replayed {
				w.Header().Set(HeaderReplayed, "true")
			}
			e.Problem(w, Problem{
				Code: CodeRefused, Failure: res.Failure, Resource: res.Resource,
				Detail: "the request was refused for good",
			})
			return
		}
	}
	if res.Code < 200 || res.Code > 599 {
		e.log().Error("a result has a code that is not an HTTP status", "code", res.Code)
		e.Problem(w, Problem{Code: CodeInternal})
		return
	}
	h := w.Header()
	e.copyHeaders(h, res.Header)
	if e.Policy != "" {
		h.Set(HeaderPolicy, e.Policy)
	}
	if res.Replayed {
		h.Set(HeaderReplayed, "true")
		if e.OnReplay != nil {
			e.OnReplay(h, res)
		}
	}
	w.WriteHeader(res.Code)
	_, _ = w.Write(res.Body)
}

// mismatch shows the state of the first command, which is the same tenant's, so that a client that changed its request
// after a timeout can find its resource. The first command's answer is never shown.
func (e Edge) mismatch(w http.ResponseWriter, err error) {
	p := Problem{Code: CodeKeyReused, Detail: "this Idempotency-Key belongs to a different request: use a new key " +
		"for a new intent"}
	var m *idempotency.MismatchError
	if errors.As(err, &m) {
		p.State, p.Resource = m.State, m.Resource
	}
	e.Problem(w, p)
}

func (e Edge) inProgress(w http.ResponseWriter, err error) {
	wait := cmp.Or(e.RetryInProgress, 2*time.Second)
	var p *idempotency.InProgressError
	if errors.As(err, &p) {
		wait = min(wait, p.RetryAfter)
	}
	retryAfter(w, wait)
	if e.StatusURL != "" {
		e.accepted(w, idempotency.InProgress)
		return
	}
	e.Problem(w, Problem{
		Code: CodeInProgress, State: idempotency.InProgress,
		Detail: "another request with this Idempotency-Key is in progress: repeat this one later with the same key",
	})
}

func (e Edge) unknown(w http.ResponseWriter, u idempotency.UnknownError) {
	detail := "the outcome of the request is unknown: repeat it with the same Idempotency-Key; with a new key it may " +
		"be done twice"
	wait := cmp.Or(e.RetryUnknown, 15*time.Second)
	if u.Stuck { // the time that a person needs is a guess
		detail = "the outcome of the request is unknown, and a person must find it out; with a new key it may " +
			"be done twice"
		wait = time.Hour
	}
	if e.StatusURL != "" || !u.Stuck { // by Retry-After a client distinguishes this 202 from a success
		retryAfter(w, wait)
	}
	if e.StatusURL != "" {
		e.accepted(w, idempotency.Unknown)
		return
	}
	e.Problem(w, Problem{Code: CodeUnknown, State: idempotency.Unknown, Detail: detail})
}

func (e Edge) expired(w http.ResponseWriter, err error) {
	p := Problem{
		Code: CodeExpired, State: idempotency.Expired,
		Detail: "the request was finished, and its answer is no longer kept: read the resource; for a new intent use " +
			"a new key",
	}
	var x *idempotency.ExpiredError
	if errors.As(err, &x) {
		p.FirstStatus, p.Failure, p.Resource = x.Code, x.Failure, x.Resource
	}
	e.Problem(w, p)
}

// retryAfter sets the header to whole seconds, rounded up, at least one.
func retryAfter(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10))
}

func (e Edge) log() *slog.Logger {
	if e.Logger != nil {
		return e.Logger
	}
	return slog.Default()
}
