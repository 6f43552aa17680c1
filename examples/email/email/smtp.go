package email

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/wneessen/go-mail"
)

// How the SMTP connection is encrypted.
const (
	TLSMandatory     = "mandatory"     // STARTTLS, or nothing is sent
	TLSOpportunistic = "opportunistic" // STARTTLS when the server offers it
	TLSNone          = "none"
)

// SMTPConfig sets an SMTP provider. Addr is required.
type SMTPConfig struct {
	// Addr is the server, host:port.
	Addr string
	// TLS is one of the constants above. Default "opportunistic".
	TLS string
	// Username and Password log in. Empty: no login.
	Username, Password string
	// Timeout bounds each wait for the server. Default 10 s.
	Timeout time.Duration
}

// SMTP is a [Provider] over SMTP, with a connection for each mail. It may be used by many goroutines.
type SMTP struct {
	host    string
	options []mail.Option
}

// NewSMTP checks the configuration; it dials nothing.
func NewSMTP(cfg SMTPConfig) (*SMTP, error) {
	host, portText, err := net.SplitHostPort(cfg.Addr)
	port, bad := strconv.ParseUint(portText, 10, 16)
	if err != nil || bad != nil || host == "" || port == 0 {
		return nil, fmt.Errorf("email: SMTP address %q: want host:port", cfg.Addr)
	}
	policy, ok := map[string]mail.TLSPolicy{
		TLSMandatory: mail.TLSMandatory, TLSOpportunistic: mail.TLSOpportunistic,
		TLSNone: mail.NoTLS,
	}[cmp.Or(cfg.TLS, TLSOpportunistic)]
	if !ok {
		return nil, fmt.Errorf("email: SMTP TLS %q: want mandatory, opportunistic or none", cfg.TLS)
	}
	if cfg.Timeout < 0 {
		return nil, errors.New("email: the SMTP time-out must not be negative: leave it zero for its default")
	}
	p := &SMTP{host: host, options: []mail.Option{
		mail.WithPort(int(port)), mail.WithTLSPolicy(policy),
		mail.WithTimeout(cmp.Or(cfg.Timeout, 10*time.Second)), mail.WithoutNoop(),
	}}
	if cfg.Username != "" {
		p.options = append(p.options, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(cfg.Username),
			mail.WithPassword(cfg.Password))
	}
	if _, err := mail.NewClient(host, p.options...); err != nil {
		return nil, fmt.Errorf("email: %w", err)
	}
	return p, nil
}

// Send implements [Provider]. A refusal of the recipient or of the mail (5xx) is final; a refusal of us (the login, the
// sender) is not, because it is for people to mend. A connection that is lost between the mail's last byte and the
// server's answer leaves the outcome unknown.
func (p *SMTP) Send(ctx context.Context, m Message) error {
	msg, err := compose(m)
	if err != nil {
		return Refused(err)
	}
	// The client's own way to dial leaves the connection open when the greeting fails, and hears of no ctx later on.
	var conn net.Conn
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return conn, err
	}
	client, err := mail.NewClient(p.host, append(p.options[:len(p.options):len(p.options)],
		mail.WithDialContextFunc(dial))...)
	if err != nil {
		return err
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if conn != nil {
		defer conn.Close()
	}
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	err = client.SendWithSMTPClient(session, msg)
	if msg.IsDelivered() {
		// What failed after that is the politeness of leaving.
		_ = client.CloseWithSMTPClient(session)
		return nil
	}
	// No QUIT: in the middle of a mail the client would first end it properly, and half a mail would be accepted.
	return classify(err)
}

// classify sorts the error of a mail that is not known to be accepted.
func classify(err error) error {
	send, ok := errors.AsType[*mail.SendError](err)
	if !ok {
		return err
	}
	final := send.ErrorCode() >= 500
	switch send.Reason {
	case mail.ErrSMTPRcptTo, mail.ErrSMTPData:
		if final {
			return Refused(err)
		}
	case mail.ErrSMTPDataClose:
		if final {
			return Refused(err)
		}
		if send.ErrorCode() == 0 {
			return Unknown(err)
		}
	case mail.ErrGetSender, mail.ErrGetRcpts, mail.ErrNoUnencoded:
		return Refused(err)
	}
	return err
}

// compose makes the mail. The same Message makes the same bytes but for nothing: date and id are the Message's own.
func compose(m Message) (*mail.Msg, error) {
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := msg.From(m.From); err != nil {
		return nil, fmt.Errorf("the sender: %w", err)
	}
	if err := msg.To(m.To); err != nil {
		return nil, fmt.Errorf("the recipient: %w", err)
	}
	msg.Subject(m.Subject)
	msg.SetDateWithValue(m.Date.UTC())
	msg.SetGenHeader(mail.HeaderMessageID, m.ID)
	msg.SetBodyString(mail.TypeTextPlain, m.Body)
	return msg, nil
}
