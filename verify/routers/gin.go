// Package routers tests httpedge's middleware with chi, gin and echo. It is a separate module, so that users of the
// library do not download them. chi uses the middleware directly, echo through its WrapMiddleware. gin has no adapter
// that passes the middleware's writer to handlers, which recording needs: copy [Gin].
package routers

import (
	"io"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin adapts a net/http middleware to gin. Later handlers write to the middleware's writer, and the request has the
// route's pattern, as with net/http's router.
func Gin(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer, request := c.Writer, c.Request
		passed := false
		inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passed = true
			c.Writer, c.Request = &ginWriter{ResponseWriter: outer, to: w}, r
			c.Next()
			c.Writer.WriteHeaderNow() // also if the handler wrote no body
		})
		defer func() { c.Writer, c.Request = outer, request }()
		named := request.WithContext(request.Context())
		named.Pattern = request.Method + " " + c.FullPath()
		middleware(inner).ServeHTTP(outer, named)
		if !passed {
			c.Abort() // the middleware has answered
		}
	}
}

// ginWriter is a gin.ResponseWriter that writes to another http.ResponseWriter.
type ginWriter struct {
	gin.ResponseWriter
	to      http.ResponseWriter
	status  int
	size    int
	written bool
}

// Header implements http.ResponseWriter.
func (w *ginWriter) Header() http.Header { return w.to.Header() }

// WriteHeader implements http.ResponseWriter. As in gin, the status is sent with the first byte or at the end.
func (w *ginWriter) WriteHeader(code int) {
	if code > 0 && !w.written {
		w.status = code
	}
}

// WriteHeaderNow implements gin.ResponseWriter.
func (w *ginWriter) WriteHeaderNow() {
	if !w.written {
		w.written = true
		w.to.WriteHeader(w.Status())
	}
}

// Write implements http.ResponseWriter.
func (w *ginWriter) Write(b []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(b)
	w.size += n
	return n, err
}

// WriteString implements io.StringWriter.
func (w *ginWriter) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.to, s)
	w.size += n
	return n, err
}

// Flush implements http.Flusher.
func (w *ginWriter) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.to).Flush()
}

// Status implements gin.ResponseWriter.
func (w *ginWriter) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// Size implements gin.ResponseWriter.
func (w *ginWriter) Size() int { return w.size }

// Written implements gin.ResponseWriter.
func (w *ginWriter) Written() bool { return w.written }
