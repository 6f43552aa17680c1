package pgtest

import (
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// NewPooler starts a pooler in transaction mode with one server connection, which its clients take turns at, and knows
// nothing of prepared statements. It returns its address. The end of the test stops it.
func NewPooler(t testing.TB, url string) string {
	t.Helper()
	server, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	hijacked, err := server.Hijack()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var turn sync.Mutex
	var clients sync.WaitGroup
	clients.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			clients.Go(func() {
				defer func() { _ = conn.Close() }()
				pooled(conn, hijacked.Frontend, &turn)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); clients.Wait(); _ = hijacked.Conn.Close() })
	return l.Addr().String()
}

// pooled serves one client until it goes.
func pooled(conn net.Conn, server *pgproto3.Frontend, turn *sync.Mutex) {
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return
	}
	client.Send(&pgproto3.AuthenticationOk{})
	client.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	client.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if client.Flush() != nil {
		return
	}
	for mine := false; ; {
		message, err := client.Receive()
		if err != nil {
			break
		}
		if _, ok := message.(*pgproto3.Terminate); ok {
			break
		}
		if !mine {
			turn.Lock()
			mine = true
		}
		server.Send(message)
		switch message.(type) {
		case *pgproto3.Sync, *pgproto3.Query:
			status := answer(client, server)
			if mine = status != 'I'; !mine {
				turn.Unlock()
			}
			if status == 0 {
				return
			}
		}
	}
}

// answer passes on what the server says, and returns its transaction status; 0: somebody is gone.
func answer(client *pgproto3.Backend, server *pgproto3.Frontend) byte {
	if server.Flush() != nil {
		return 0
	}
	for {
		message, err := server.Receive()
		if err != nil {
			return 0
		}
		client.Send(message)
		if ready, ok := message.(*pgproto3.ReadyForQuery); ok {
			if client.Flush() != nil {
				return 0
			}
			return ready.TxStatus
		}
	}
}
