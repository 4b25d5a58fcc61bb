// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"syscall"
	"unsafe"
)

const canTry = true

// maxVector is how many pieces are written at once: as many as make a syscall worth it.
const maxVector = 64

type vector [maxVector]syscall.Iovec

// tryFD writes as much of list as the socket takes. It always says that it is done, for else it
// would be made to wait.
func (s *socket) tryFD(fd uintptr) bool {
	list, skip := s.list, s.skip
	for len(list) > 0 {
		k, want := 0, 0
		for ; k < len(list) && k < maxVector; k++ {
			p := list[k].P
			if k == 0 {
				p = p[skip:]
			}
			if len(p) == 0 {
				p = emptyPiece[:0]
			}
			s.vec[k].Base = unsafe.SliceData(p)
			s.vec[k].SetLen(len(p))
			want += len(p)
		}
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&s.vec[0])), uintptr(k))
		switch errno {
		case 0:
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return true
		default:
			s.err = errno
			return true
		}
		s.n += int(n)
		if int(n) < want {
			return true
		}
		list, skip = list[k:], 0
	}
	return true
}

var emptyPiece [1]byte
