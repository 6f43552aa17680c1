package httpedge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
)

// read reads the request's body whole.
func (m *middleware) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	most := m.cfg.MaxRequest
	if most < 0 {
		most = math.MaxInt64
	}
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &Problem{Code: CodeTooLarge, Detail: fmt.Sprintf("at most %d bytes are read with an %s", large.Limit, HeaderKey)}
	case err != nil:
		return nil, &Problem{Code: CodeBadRequest, Detail: "the body ended too early"}
	}
	return body, nil
}

// withBody gives a request its body again.
func withBody(r *http.Request, body []byte) *http.Request {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return r
}
