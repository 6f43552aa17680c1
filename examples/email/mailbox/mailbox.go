// Package mailbox is a mail server for tests and the demo. It accepts mail over SMTP, keeps it by Message-ID, answers
// over HTTP which mails it has accepted, and fails on demand.
package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/emersion/go-smtp"
)

// Verdict is what the server does with a mail.
type Verdict int

const (
	// Accept keeps the mail and replies 250.
	Accept Verdict = iota
	// AcceptAndDrop keeps the mail and closes the connection without a reply.
	AcceptAndDrop
	// Drop closes the connection and keeps nothing. The client cannot tell it from AcceptAndDrop.
	Drop
	// Defer replies 451: try again.
	Defer
	// Reject replies 550: permanent.
	Reject
)

// Mail is a mail that the server has accepted.
type Mail struct {
	// MessageID includes the angle brackets.
	MessageID, From, Subject, Date, Body string
	To                                   []string
	// Accepted counts the accepted mails with this Message-ID.
	Accepted int
}

// Config sets a Mailbox. The zero value listens on any free port of 127.0.0.1 and accepts everything.
type Config struct {
	// Listen is the address for SMTP. Default 127.0.0.1:0, any free port.
	Listen string
	// Recipient decides at RCPT TO, where AcceptAndDrop acts as Drop. Nil accepts every recipient.
	Recipient func(to string) Verdict
	// Mail decides at the end of DATA; attempt counts the deliveries of this Message-ID, from 1. It may block, which
	// delays the client. Nil accepts every mail.
	Mail func(m Mail, attempt int) Verdict
}

// Mailbox is the server. It is safe for concurrent use.
type Mailbox struct {
	cfg      Config
	listener net.Listener
	server   *smtp.Server

	mu       sync.Mutex
	mails    map[string]*Mail
	attempts map[string]int
	accepted int
	conns    map[*trackedConn]struct{}
}

// New opens the listener. Call Run to serve, or Close to close the listener.
func New(cfg Config) (*Mailbox, error) {
	l, err := net.Listen("tcp", cmp.Or(cfg.Listen, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("mailbox: %w", err)
	}
	m := &Mailbox{
		cfg: cfg, listener: l, mails: map[string]*Mail{}, attempts: map[string]int{},
		conns: map[*trackedConn]struct{}{},
	}
	m.server = smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		return &session{box: m, conn: c}, nil
	}))
	m.server.Domain = "mailbox.example"
	m.server.ReadTimeout, m.server.WriteTimeout = time.Minute, time.Minute
	m.server.MaxMessageBytes = 1 << 20
	// It would log each connection that is dropped on purpose.
	m.server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return m, nil
}

// Addr is the SMTP address, host:port.
func (m *Mailbox) Addr() string { return m.listener.Addr().String() }

// Run serves until ctx ends, then closes every connection and returns nil.
func (m *Mailbox) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- m.server.Serve(trackingListener{m.listener, m}) }()
	select {
	case err := <-served:
		return fmt.Errorf("mailbox: %w", err)
	case <-ctx.Done():
	}
	// Clients in the middle of a session get a moment to finish.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	stop := context.AfterFunc(grace, m.closeConns)
	defer stop()
	_ = m.server.Shutdown(context.WithoutCancel(ctx))
	return <-served
}

// Close closes the listener of a Mailbox that is not run.
func (m *Mailbox) Close() error { return m.listener.Close() }

// Mails returns the accepted mails, one for each Message-ID, sorted by it.
func (m *Mailbox) Mails() []Mail {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Mail, 0, len(m.mails))
	for _, mail := range m.mails {
		all = append(all, *mail)
	}
	slices.SortFunc(all, func(a, b Mail) int { return cmp.Compare(a.MessageID, b.MessageID) })
	return all
}

// Accepted counts the accepted mails, repeated ones with the same Message-ID included.
func (m *Mailbox) Accepted() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.accepted
}

// Lookup reports whether a mail with this Message-ID was accepted. It is an email.Lookup.
func (m *Mailbox) Lookup(_ context.Context, messageID string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mails[messageID] != nil, nil
}

// attempt counts a delivery and returns the verdict.
func (m *Mailbox) attempt(mail Mail) Verdict {
	m.mu.Lock()
	m.attempts[mail.MessageID]++
	n := m.attempts[mail.MessageID]
	m.mu.Unlock()
	if m.cfg.Mail == nil {
		return Accept
	}
	return m.cfg.Mail(mail, n)
}

func (m *Mailbox) store(mail Mail) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.accepted++
	if old := m.mails[mail.MessageID]; old != nil {
		mail.Accepted = old.Accepted
	}
	mail.Accepted++
	m.mails[mail.MessageID] = &mail
}

func (m *Mailbox) recipient(to string) Verdict {
	if m.cfg.Recipient == nil {
		return Accept
	}
	return m.cfg.Recipient(to)
}

var (
	errDeferred = &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "try again later"}
	errRejected = &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such recipient"}
	errDropped  = errors.New("the connection was dropped on purpose")
)

// session is one SMTP session.
type session struct {
	box  *Mailbox
	conn *smtp.Conn
	from string
	to   []string
}

func (s *session) Reset()        { s.from, s.to = "", nil }
func (s *session) Logout() error { return nil }

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.from = from
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	switch v := s.box.recipient(to); v {
	case Accept:
		s.to = append(s.to, to)
		return nil
	default:
		return s.reply(v)
	}
}

func (s *session) Data(r io.Reader) error {
	mail, err := read(r)
	if err != nil {
		return err
	}
	mail.From, mail.To = s.from, slices.Clone(s.to)
	v := s.box.attempt(mail)
	if v == Accept || v == AcceptAndDrop {
		s.box.store(mail)
	}
	return s.reply(v)
}

func (s *session) reply(v Verdict) error {
	switch v {
	case Accept:
		return nil
	case Defer:
		return errDeferred
	case Reject:
		return errRejected
	}
	_ = s.conn.Conn().Close()
	return errDropped
}
