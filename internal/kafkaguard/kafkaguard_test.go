package kafkaguard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime/metrics"
	"testing"
	"time"

	_ "github.com/segmentio/kafka-go" // registers the messages
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fill sets every field of a message: two of each array.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "UnknownTags" && f.Name != "Version" {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.String:
		v.SetString("text")
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(3)
	}
}

const correlation = 7

// answers returns a whole answer for each version of each message that kafka-go and another library know alike.
func answers(t *testing.T) map[kind][]byte {
	t.Helper()
	all := map[kind][]byte{}
	for key := range protocol.AlterUserScramCredentials + 1 {
		res := kmsg.ResponseForKey(int16(key))
		if res == nil || key.MaxVersion() == 0 {
			continue
		}
		fill(reflect.ValueOf(res).Elem())
		for v := key.MinVersion(); v <= key.MaxVersion(); v++ {
			res.SetVersion(v)
			frame := binary.BigEndian.AppendUint32(make([]byte, 4), correlation)
			if res.IsFlexible() && key != protocol.ApiVersions {
				frame = append(frame, 0)
			}
			frame = sized(res.AppendTo(frame))
			if checkOf(kind{key, v}) == nil {
				continue
			}
			if _, _, err := protocol.ReadResponse(bytes.NewReader(frame), key, v); err == nil {
				all[kind{key, v}] = frame
			}
		}
	}
	return all
}

func sized(frame []byte) []byte {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

// wire is a broker's end of a connection.
type wire struct {
	net.Conn
	answers io.Reader
}

func (w wire) Write(b []byte) (int, error) { return len(b), nil }
func (w wire) Read(b []byte) (int, error)  { return w.answers.Read(b) }

// read sends a request of a kind, and returns what kafka-go would read.
func read(t *testing.T, k kind, frame []byte) (*conn, error) {
	t.Helper()
	c := &conn{Conn: wire{answers: bytes.NewReader(frame)}, checks: map[kind]check{}}
	ask(t, c, k, correlation)
	_, _, err := protocol.ReadResponse(c, k.key, k.version)
	return c, err
}

// ask writes a request in pieces, as kafka-go does with a long one.
func ask(t *testing.T, c *conn, k kind, id uint32) {
	t.Helper()
	be := binary.BigEndian
	b := be.AppendUint16(make([]byte, 4), uint16(k.key))
	b = append(be.AppendUint32(be.AppendUint16(b, uint16(k.version)), id), "the rest"...)
	for _, piece := range [][]byte{b[:5], b[5:13], b[13:]} {
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		if _, err := c.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTrueAnswersPass: whole answers are passed on as they are, in every version that kafka-go decodes.
func TestTrueAnswersPass(t *testing.T) {
	t.Parallel()
	all := answers(t)
	for k, frame := range all {
		c := &conn{Conn: wire{answers: bytes.NewReader(bytes.Repeat(frame, 2))}, checks: map[kind]check{}}
		for range 2 {
			ask(t, c, k, correlation)
			got := make([]byte, len(frame))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, frame) {
				t.Errorf("%v v%d: %v", k.key, k.version, err)
			}
		}
	}
	for _, key := range []protocol.ApiKey{
		protocol.Produce, protocol.Metadata, protocol.ApiVersions, protocol.FindCoordinator, protocol.JoinGroup,
		protocol.SyncGroup, protocol.LeaveGroup, protocol.OffsetCommit, protocol.OffsetFetch, protocol.ListOffsets,
		protocol.DescribeConfigs, protocol.SaslHandshake, protocol.SaslAuthenticate,
	} {
		if all[kind{key, key.MaxVersion()}] == nil {
			t.Errorf("%v v%d is not checked", key, key.MaxVersion())
		}
	}
	t.Logf("%d versions of messages", len(all))
}

// allocated returns how many bytes have been allocated so far.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// TestFalseAnswers: no answer with a false byte, and none that is cut, makes kafka-go panic, or allocate much more than
// a true one.
func TestFalseAnswers(t *testing.T) {
	t.Parallel()
	refused, passed := 0, 0
	try := func(k kind, frame []byte) {
		before := allocated()
		_, err := read(t, k, frame)
		if n := allocated() - before; n > 16<<20 {
			t.Fatalf("%v v%d: %d bytes are allocated for an answer of %d: %x", k.key, k.version, n, len(frame), frame)
		}
		if passed++; err != nil {
			refused++
		}
	}
	for k, frame := range answers(t) {
		if k.version != k.key.MinVersion() && k.version != k.key.MaxVersion() {
			continue
		}
		for i := range frame {
			for _, bits := range []byte{0x01, 0x80, 0x7f} {
				spoilt := bytes.Clone(frame)
				spoilt[i] ^= bits
				try(k, spoilt)
			}
			try(k, frame[:i])
			if i >= 4 {
				try(k, sized(bytes.Clone(frame[:i])))
			}
		}
	}
	if refused == 0 || refused == passed {
		t.Errorf("%d of %d answers were refused", refused, passed)
	}
	t.Logf("%d of %d answers were refused", refused, passed)
}

// TestForeignAnswers: what is not the answer to the request says so.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	k := kind{protocol.FindCoordinator, 0}
	truth := answers(t)[k]
	other := bytes.Clone(truth)
	other[7]++
	for name, frame := range map[string][]byte{
		"another request's": other,
		"text":              []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"a TLS alert":       {0x15, 3, 3, 0, 2, 2, 70},
		"nothing":           {0, 0, 0, 0},
		"a negative length": {0xff, 0xff, 0xff, 0xff, 0, 0, 0, correlation, 0, 0},
	} {
		c, err := read(t, k, append(frame, make([]byte, 100)...))
		if !errors.Is(err, ErrFalse) {
			t.Errorf("%s: %v", name, err)
		}
		if n, again := c.Read(make([]byte, 1)); n > 0 || !errors.Is(again, ErrFalse) {
			t.Errorf("%s, behind it: %d bytes, %v", name, n, again)
		}
	}
	if _, err := read(t, k, truth[:len(truth)-1]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an end in an answer: %v", err)
	}
	c, err := read(t, k, append(bytes.Clone(truth), truth...))
	if err != nil {
		t.Fatal(err)
	}
	ask(t, c, k, correlation+1)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrFalse) {
		t.Errorf("a repeated answer: %v", err)
	}
	if c, _ = read(t, k, append(bytes.Clone(truth), 1)); true {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrFalse) {
			t.Errorf("an answer without a request: %v", err)
		}
	}
}

// TestOwnReadersAnswersPass: what kafka-go does not decode is its reader's to check, but for the correlation id.
func TestOwnReadersAnswersPass(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{{protocol.Fetch, 13}, {protocol.Fetch, 4}, {protocol.Metadata, 10}} {
		frame := sized(append(binary.BigEndian.AppendUint32(make([]byte, 4), correlation), "anything"...))
		for id, want := range map[uint32]error{correlation: nil, correlation + 1: ErrFalse} {
			c := &conn{Conn: wire{answers: bytes.NewReader(frame)}, checks: map[kind]check{}}
			ask(t, c, k, id)
			got := make([]byte, len(frame))
			if _, err := io.ReadFull(c, got); !errors.Is(err, want) || err == nil && !bytes.Equal(got, frame) {
				t.Errorf("%v v%d: %q, %v", k.key, k.version, got, err)
			}
		}
	}
	// A broker before Kafka 1.0 goes on with messages of the mechanism.
	k := kind{protocol.SaslHandshake, 0}
	c, err := read(t, k, append(bytes.Clone(answers(t)[k]), "a challenge"...))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("a response")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "a challenge" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestDialSpeaksTLS: with a configuration of TLS the connection is encrypted, and the certificate is compared with the
// host that was dialed.
func TestDialSpeaksTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	cfg := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	cfg.ServerName = ""
	to := s.Listener.Addr().String()
	dial := Dial(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}, cfg)
	for address, ok := range map[string]bool{"example.com:9092": true, "another.org:9092": false, "no port": false} {
		c, err := dial(t.Context(), "tcp", address)
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = c.Write([]byte{0})
			_ = c.Close()
		}
		if (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
	refused := errors.New("refused")
	if _, err := Dial(func(context.Context, string, string) (net.Conn, error) { return nil, refused }, nil)(t.Context(),
		"tcp", to); !errors.Is(err, refused) {
		t.Error(err)
	}
}
