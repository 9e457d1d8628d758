package all

import _ "github.com/mooncake-agent/mooncake/transports/tcp" // plain TCP sockets
