package mailbox

import (
	"encoding/json"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/mail"
	"strings"

	"github.com/emersion/go-smtp"
)

// read parses a mail. It rejects one without a Message-ID, because no lookup could find it.
func read(r io.Reader) (Mail, error) {
	m, err := mail.ReadMessage(r)
	if err != nil {
		return Mail{}, err
	}
	text := m.Body
	if strings.EqualFold(m.Header.Get("Content-Transfer-Encoding"), "quoted-printable") {
		text = quotedprintable.NewReader(text)
	}
	body, err := io.ReadAll(text)
	if err != nil {
		return Mail{}, err
	}
	id := m.Header.Get("Message-ID")
	if id == "" {
		return Mail{}, &smtp.SMTPError{
			Code: 550, EnhancedCode: smtp.EnhancedCode{5, 6, 0},
			Message: "a mail needs a Message-ID",
		}
	}
	return Mail{MessageID: id, Subject: m.Header.Get("Subject"), Date: m.Header.Get("Date"), Body: string(body)}, nil
}

// Handler answers GET /?message_id=<id> with 200 if such a mail was accepted and with 404 if not. The email worker's
// --lookup-url asks it.
func (m *Mailbox) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.URL.Query().Get("message_id")
		m.mu.Lock()
		found := m.mails[id]
		accepted := 0
		if found != nil {
			accepted = found.Accepted
		}
		m.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if found == nil {
			w.WriteHeader(http.StatusNotFound)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"message_id": id, "accepted": accepted})
	})
}

// trackingListener keeps the open connections, so that Run can first wait for handlers and then close connections: the
// server's Shutdown and Close exclude each other.
type trackingListener struct {
	net.Listener
	box *Mailbox
}

func (l trackingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t := &trackedConn{Conn: c, box: l.box}
	l.box.mu.Lock()
	defer l.box.mu.Unlock()
	l.box.conns[t] = struct{}{}
	return t, nil
}

type trackedConn struct {
	net.Conn
	box *Mailbox
}

func (c *trackedConn) Close() error {
	c.box.mu.Lock()
	delete(c.box.conns, c)
	c.box.mu.Unlock()
	return c.Conn.Close()
}

func (m *Mailbox) closeConns() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		_ = c.Conn.Close()
	}
}
