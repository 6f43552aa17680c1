package child

// LookNextAt makes FreePort begin at a port.
func LookNextAt(port int) { lastPort.Store(uint32(port - firstPort - 1)) }
