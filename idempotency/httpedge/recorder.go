package httpedge

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"

	"github.com/effectonce/effectonce/idempotency"
)

// recorder buffers an answer until it is recorded. It streams one that is flushed or too large.
type recorder struct {
	w         http.ResponseWriter
	header    http.Header
	final     http.Header // at WriteHeader; later changes are not sent
	code      int         // 0: not written yet
	body      []byte
	limit     int // bytes of body
	streaming bool
	reason    string // for streaming
}

func newRecorder(w http.ResponseWriter, limit int) *recorder {
	return &recorder{w: w, header: w.Header().Clone(), limit: limit}
}

// Header implements http.ResponseWriter.
func (c *recorder) Header() http.Header {
	if c.header == nil {
		c.header = http.Header{}
	}
	return c.header
}

// WriteHeader implements http.ResponseWriter. It sends an early hint at once.
func (c *recorder) WriteHeader(code int) {
	switch {
	case c.code != 0:
	case code >= 100 && code < 200 && code != http.StatusSwitchingProtocols:
		c.copyHeader()
		c.w.WriteHeader(code)
	default:
		c.code = code
		c.final = c.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (c *recorder) Write(b []byte) (int, error) {
	if c.code == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !c.streaming && len(c.body)+len(b) > c.limit {
		c.stream("it was too large")
	}
	if c.streaming {
		return c.w.Write(b)
	}
	c.body = append(c.body, b...)
	return len(b), nil
}

// Flush implements http.Flusher, and begins streaming.
func (c *recorder) Flush() {
	if c.code == 0 {
		c.WriteHeader(http.StatusOK)
	}
	c.stream("it was a stream")
	_ = http.NewResponseController(c.w).Flush()
}

// Unwrap lets http.ResponseController set deadlines.
func (c *recorder) Unwrap() http.ResponseWriter { return c.w }

// Hijack returns an error, so that Unwrap cannot bypass the recorder.
func (c *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, fmt.Errorf("a connection cannot be hijacked through the idempotency middleware: %w",
		http.ErrNotSupported)
}

func (c *recorder) stream(reason string) {
	if c.streaming {
		return
	}
	c.streaming, c.reason = true, reason
	c.copyHeader()
	c.w.WriteHeader(c.status())
	_, _ = c.w.Write(c.body)
	c.body = nil
}

func (c *recorder) status() int {
	if c.code == 0 {
		return http.StatusOK
	}
	return c.code
}

// finalHeader returns the header to send.
func (c *recorder) finalHeader() http.Header {
	if c.final != nil {
		return c.final
	}
	return c.Header()
}

// copyHeader sets the header of the outer writer to the handler's.
func (c *recorder) copyHeader() {
	h := c.w.Header()
	clear(h)
	maps.Copy(h, c.finalHeader())
}

// send writes the answer with the handler's headers, and with the stored body, so that a retry gets the same.
func (c *recorder) send(e Edge, res idempotency.Result, recorded bool) {
	c.copyHeader()
	body := c.body
	if recorded {
		body = res.Body
		if e.Policy != "" {
			c.w.Header().Set(HeaderPolicy, e.Policy)
		}
		if len(body) != len(c.body) { // redacted
			c.w.Header().Del("Content-Length")
		}
	}
	c.w.WriteHeader(c.status())
	_, _ = c.w.Write(body)
	c.copyTrailers()
}

// copyTrailers copies the trailers that the handler has set: the announced ones, and those with http.TrailerPrefix.
func (c *recorder) copyTrailers() {
	to := c.w.Header()
	for _, names := range c.finalHeader()["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values := c.Header()[name]; values != nil {
				to[name] = values
			}
		}
	}
	for name, values := range c.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			to[name] = values
		}
	}
}

// result returns the answer to store.
func (e Edge) result(c *recorder) idempotency.Result {
	h := c.finalHeader()
	res := idempotency.Result{Code: c.status(), Body: c.body}
	if c.streaming {
		res.Header = map[string][]string{headerNotKept: {c.reason}}
		res.Resource = h.Get("Location")
		return res
	}
	if h.Get("Content-Type") == "" && len(c.body) > 0 {
		// As net/http does for the first caller.
		h.Set("Content-Type", http.DetectContentType(c.body))
	}
	res.Header = e.storedHeaders(h)
	if e.Redact != nil {
		e.Redact(&res)
		res.Code = c.status()
	}
	return res
}
