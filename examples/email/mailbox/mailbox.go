// Package mailbox is a mail server for tests and the demo: it takes mail over SMTP, keeps it by Message-ID, tells over
// HTTP what it has taken, and fails on demand in the ways that matter.
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
	// Accept keeps the mail and says so.
	Accept Verdict = iota
	// AcceptAndDrop keeps the mail and closes the connection instead of saying so: the client cannot know.
	AcceptAndDrop
	// Drop closes the connection and keeps nothing: to the client it looks the same.
	Drop
	// Later answers 451, which means "try again".
	Later
	// Refuse answers 550, which means "never".
	Refuse
)

// Mail is one mail that the server has taken.
type Mail struct {
	// MessageID is with its angle brackets.
	MessageID, From, Subject, Date, Body string
	To                                   []string
	// Accepted counts how often a mail with this Message-ID was taken. More than one means that somebody got two.
	Accepted int
}

// Config sets a Mailbox. The zero value listens on any free port of 127.0.0.1 and accepts everything.
type Config struct {
	// Listen is the address for SMTP. Default 127.0.0.1:0, any free port.
	Listen string
	// Recipient decides at RCPT TO; AcceptAndDrop is as Drop there. Nil: everybody is welcome.
	Recipient func(to string) Verdict
	// Mail decides when the mail is there; attempt counts the tries to deliver this Message-ID, from 1. It may block,
	// to hold the client back. Nil: everything is accepted.
	Mail func(m Mail, attempt int) Verdict
}

// Mailbox is the server. Its methods may be called from any goroutine.
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

// New opens the listener. Call Run to serve, or Close to give it back.
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
	// It would log the connections that are dropped on purpose.
	m.server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return m, nil
}

// Addr is where it listens for SMTP, host:port.
func (m *Mailbox) Addr() string { return m.listener.Addr().String() }

// Run serves until ctx ends, then closes every connection and returns nil.
func (m *Mailbox) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- m.server.Serve(tracking{m.listener, m}) }()
	select {
	case err := <-served:
		return fmt.Errorf("mailbox: %w", err)
	case <-ctx.Done():
	}
	// Clients that are in the middle of something get a moment to finish.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	stop := context.AfterFunc(grace, m.cut)
	defer stop()
	_ = m.server.Shutdown(context.WithoutCancel(ctx))
	return <-served
}

// Close gives the listener of a Mailbox back that is not run.
func (m *Mailbox) Close() error { return m.listener.Close() }

// Mails returns what was taken, by Message-ID.
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

// Accepted counts the mails that were taken, those with one Message-ID as often as they came.
func (m *Mailbox) Accepted() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.accepted
}

// Lookup tells whether a mail with this Message-ID was taken. It makes a Mailbox the query of package email.
func (m *Mailbox) Lookup(_ context.Context, messageID string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mails[messageID] != nil, nil
}

// attempt counts a try to deliver and asks what to do.
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

func (m *Mailbox) keep(mail Mail) {
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
	errLater  = &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "not now"}
	errRefuse = &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "nobody of that name"}
	errGone   = errors.New("the connection was dropped on purpose")
)

// session is one client's mail, until the next MAIL FROM.
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
		return s.answer(v)
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
		s.box.keep(mail)
	}
	return s.answer(v)
}

func (s *session) answer(v Verdict) error {
	switch v {
	case Accept:
		return nil
	case Later:
		return errLater
	case Refuse:
		return errRefuse
	}
	_ = s.conn.Conn().Close()
	return errGone
}
