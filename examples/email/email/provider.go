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

// Message is a mail. The notification holds all of it, so that every attempt sends the same mail.
type Message struct {
	// ID is the Message-ID with its angle brackets. All attempts have the same.
	ID                      string
	From, To, Subject, Body string
	Date                    time.Time
}

// Provider sends mails. Send returns nil if the mail was accepted, a [Refused] error if it never will be, an [Unknown]
// error if it may have been accepted, and any other error if it was not accepted and a retry may help. Send returns
// soon after ctx ends.
type Provider interface {
	Send(ctx context.Context, m Message) error
}

// Lookup asks the provider whether it has accepted the mail with this Message-ID. False must be final, because the mail
// is then sent again; nobody asks before Config.Settled after the last attempt. While the provider cannot know, such as
// behind a query that lags, return an error. SMTP has no such query; many providers have an API for it.
type Lookup func(ctx context.Context, messageID string) (accepted bool, err error)

type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

type unknownError struct{ err error }

func (e *unknownError) Error() string {
	return "the mail may have been accepted: " + e.err.Error()
}
func (e *unknownError) Unwrap() error { return e.err }

// Refused marks err as final: the mail was not accepted, and a retry would not help. It returns nil for nil.
func Refused(err error) error {
	if err == nil {
		return nil
	}
	return &refusedError{err}
}

// Unknown marks err as ambiguous: the mail may have been accepted. It returns nil for nil.
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

// HTTPLookup asks over HTTP: GET base?message_id=<id>, where 200 means accepted and 404 not accepted. Any other status
// is an error.
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
		req.Close = true // lookups are rare
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
