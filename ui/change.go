package ui

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/effectonce/effectonce/admin"
	keysoperator "github.com/effectonce/effectonce/idempotency/pgstore/operator"
	inboxoperator "github.com/effectonce/effectonce/inbox/operator"
	"github.com/effectonce/effectonce/internal/pgerr"
	"github.com/effectonce/effectonce/relay/operator"
	"github.com/effectonce/effectonce/ui/verbs"
)

// changeTimeout bounds a change: a key with many events takes several transactions.
const changeTimeout = 30 * time.Second

// verb is a change that an operator requests.
type verb struct {
	name    string // as a title
	command []string
	back    string // the page to continue on
	do      func(ctx context.Context, reason string) (done string, err error)
}

// outcome is the result of a change.
type outcome struct {
	Severity, Text string
	Detail         string // the error
	Command        string
	Back           string
	Audit          string
}

// change runs a verb and shows its outcome.
func (q *request) change(v verb) error {
	reason, err := q.reason()
	if err != nil {
		return err
	}
	// Closing the browser does not cancel the change.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), changeTimeout)
	defer cancel()
	done, err := v.do(ctx, reason)
	q.db.Changed()
	status, result := judge(err)
	if err == nil {
		result.Text = done
	}
	result.Command = q.db.Command(append(v.command, "--reason="+reason, "--operator="+q.who.Name)...)
	result.Back, result.Audit = v.back, q.h.path("audit")
	return q.render("outcome", status, view{Title: v.name, Nav: "", Body: result})
}

// overtaken lists the errors that mean that the page was stale.
var overtaken = []error{
	admin.ErrNotParked, admin.ErrReleasing, admin.ErrEdited, admin.ErrAnotherList, operator.ErrNoTopic,
	operator.ErrNotHeld, inboxoperator.ErrNotHalted, keysoperator.ErrNotStuck, operator.ErrNotScheduled, errNotRunning,
}

// judge returns the outcome of a change from its error. Without an answer of Postgres the outcome is unknown.
func judge(err error) (status int, o outcome) {
	if err == nil {
		return http.StatusOK, outcome{Severity: well}
	}
	o = outcome{Severity: bad, Detail: err.Error()}
	if partly, ok := errors.AsType[*verbs.PartlyError](err); ok {
		o.Severity = look
		o.Text = "It was broken off: " + partly.Done.Text + " Of the next one it is unknown; the others were not " +
			"begun."
		return http.StatusBadGateway, o
	}
	for _, e := range overtaken {
		if errors.Is(err, e) {
			o.Severity, o.Text = look, "Nothing was changed: somebody was quicker, or it is not as the page showed it."
			return http.StatusConflict, o
		}
	}
	if errors.Is(err, operator.ErrLeftPaused) {
		o.Text = "Partly done. The topic stays paused; repeat the action to finish."
		return http.StatusGatewayTimeout, o
	}
	_, unreached := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case pgerr.Is(err, pgerr.InsufficientPrivilege), pgerr.Is(err, pgerr.ReadOnlyTransaction):
		o.Text = "Nothing was changed: the database lets this page only read. Run the command as a role that may."
		return http.StatusForbidden, o
	case unreached:
		o.Text = "Nothing was changed: the database could not be reached."
		return http.StatusServiceUnavailable, o
	case lost(err):
		o.Severity = look
		o.Text = "It is unknown whether this was done: the connection broke before the database answered. " +
			"The audit has a row of it if it was."
		return http.StatusGatewayTimeout, o
	}
	o.Text = "Nothing was changed."
	return http.StatusUnprocessableEntity, o
}

// lost reports whether the answer is missing, so that the change may have been made.
func lost(err error) bool {
	gone := pgerr.Away(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return gone && pgerr.CommitUnknown(err)
}
