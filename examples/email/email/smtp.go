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

// Encryption of the SMTP connection.
const (
	TLSMandatory     = "mandatory"     // STARTTLS, or an error
	TLSOpportunistic = "opportunistic" // STARTTLS if the server offers it
	TLSNone          = "none"
)

// SMTPConfig configures an SMTP provider. Addr is required.
type SMTPConfig struct {
	// Addr is the server, host:port.
	Addr string
	// TLS is one of the constants above. Default "opportunistic".
	TLS string
	// Username and Password authenticate. Empty: no authentication.
	Username, Password string
	// Timeout bounds each read and write. Default 10 s.
	Timeout time.Duration
}

// SMTP is a [Provider] over SMTP, with one connection per mail. It is safe for concurrent use.
type SMTP struct {
	host    string
	options []mail.Option
}

// NewSMTP checks the configuration. It does not connect.
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
		return nil, errors.New("email: the SMTP time-out is negative: want zero for the default, or more")
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

// Send implements [Provider]. A 5xx reply for the recipient or the mail is final; one for the login or the sender is
// not, because a configuration change may fix it. If the connection is lost between the mail's last byte and the reply,
// the outcome is unknown.
func (p *SMTP) Send(ctx context.Context, m Message) error {
	msg, err := compose(m)
	if err != nil {
		return Refused(err)
	}
	// The client's dialer leaks the connection if the greeting fails, and ignores ctx after the dial.
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
		_ = client.CloseWithSMTPClient(session) // QUIT
		return nil
	}
	// No QUIT: in the middle of DATA the client would first terminate the mail, and the server would accept half of it.
	return classify(err)
}

// classify marks the error of a mail that was not reported as delivered.
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

// compose builds the mail. Date and Message-ID come from m, so that every attempt sends the same bytes.
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
