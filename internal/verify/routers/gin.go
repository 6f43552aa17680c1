// Package routers tries httpedge's middleware under chi, gin and echo, in a module of its own: users of the library
// never download them. chi takes it as it is, echo by its WrapMiddleware. gin has no adapter that gives the handlers
// the middleware's writer, without which nothing could be recorded: copy [Gin].
package routers

import (
	"io"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin makes a gin handler of a net/http middleware. The handlers behind it write to the middleware's writer. The
// route's pattern is given to it as net/http's router would.
func Gin(middleware func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer, request := c.Writer, c.Request
		passed := false
		inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passed = true
			c.Writer, c.Request = &ginWriter{ResponseWriter: outer, to: w}, r
			c.Next()
			c.Writer.WriteHeaderNow() // a handler that wrote nothing has answered as well
		})
		defer func() { c.Writer, c.Request = outer, request }()
		named := request.WithContext(request.Context())
		named.Pattern = request.Method + " " + c.FullPath()
		middleware(inner).ServeHTTP(outer, named)
		if !passed {
			c.Abort() // answered here
		}
	}
}

// ginWriter is gin's writer over another one; what it does not say is the outer one's.
type ginWriter struct {
	gin.ResponseWriter
	to      http.ResponseWriter
	status  int
	size    int
	written bool
}

// Header is of http.ResponseWriter.
func (w *ginWriter) Header() http.Header { return w.to.Header() }

// WriteHeader is gin's: it goes out with the first byte, or at the end.
func (w *ginWriter) WriteHeader(code int) {
	if code > 0 && !w.written {
		w.status = code
	}
}

// WriteHeaderNow is of gin.ResponseWriter.
func (w *ginWriter) WriteHeaderNow() {
	if !w.written {
		w.written = true
		w.to.WriteHeader(w.Status())
	}
}

// Write is of http.ResponseWriter.
func (w *ginWriter) Write(b []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(b)
	w.size += n
	return n, err
}

// WriteString is of io.StringWriter.
func (w *ginWriter) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.to, s)
	w.size += n
	return n, err
}

// Flush is of http.Flusher.
func (w *ginWriter) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.to).Flush()
}

// Status is of gin.ResponseWriter.
func (w *ginWriter) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// Size is of gin.ResponseWriter.
func (w *ginWriter) Size() int { return w.size }

// Written is of gin.ResponseWriter.
func (w *ginWriter) Written() bool { return w.written }
