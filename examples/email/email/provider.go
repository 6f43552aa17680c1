package email

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Message is one mail. Everything in it was fixed when the notification was written, so a mail that is sent again is
// the same mail.
type Message struct {
	// ID is the Message-ID with its angle brackets: the stable identity of the mail, whatever happens to attempts.
	ID                      string
	From, To, Subject, Body string
	Date                    time.Time
}

// Provider hands a mail to whoever delivers it. Send returns nil when the mail was accepted. It wraps what it knows to
// be final with [Refused], and with [Unknown] every failure after which the mail may have been accepted; any other
// error says that it was not accepted, and that trying again may help. Send returns soon after ctx ends.
type Provider interface {
	Send(ctx context.Context, m Message) error
}

// Lookup asks the provider whether it has accepted the mail with this Message-ID. SMTP has no such question; many
// providers answer it over another way.
type Lookup func(ctx context.Context, messageID string) (accepted bool, err error)

type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

type unknownError struct{ err error }

func (e *unknownError) Error() string {
	return "nobody knows whether it was accepted: " + e.err.Error()
}
func (e *unknownError) Unwrap() error { return e.err }

// Refused marks err as final: the mail was not accepted and never will be. A nil err stays nil.
func Refused(err error) error {
	if err == nil {
		return nil
	}
	return &refusedError{err}
}

// Unknown marks err as saying nothing about whether the mail was accepted. A nil err stays nil.
func Unknown(err error) error {
	if err == nil {
		return nil
	}
	return &unknownError{err}
}

func isRefused(err error) bool {
	_, ok := errors.AsType[*refusedError](err)
	return ok
}

func isUnknown(err error) bool {
	_, ok := errors.AsType[*unknownError](err)
	return ok
}

// HTTPLookup asks over HTTP: GET base?message_id=<id>, where 200 is "accepted" and 404 "not accepted". Anything else is
// an error: not knowing is not a no.
func HTTPLookup(base string) (Lookup, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("email: the lookup URL must be http://host or https://host, with a path if need be")
	}
	return func(ctx context.Context, messageID string) (bool, error) {
		ask := *u
		query := ask.Query()
		query.Set("message_id", messageID)
		ask.RawQuery = query.Encode()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, ask.String(), http.NoBody)
		if err != nil {
			return false, err
		}
		// Asked once in a long while: an idle connection would be closed by then.
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, err
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
		switch res.StatusCode {
		case http.StatusOK:
			return true, nil
		case http.StatusNotFound:
			return false, nil
		}
		return false, fmt.Errorf("the lookup answered %s", res.Status)
	}, nil
}
