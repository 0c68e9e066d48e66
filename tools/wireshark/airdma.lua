-- Messages between airdma hosts in Wireshark: docs/protocol.md.
--   tshark -X lua_script:airdma.lua -r FILE
-- Looks behind UDP port 4791 by itself, whatever else Wireshark makes of it.

local air = Proto("airdma", "airdma")
local names = { [1] = "Hello", [2] = "Report", [3] = "Key" }
local f = {
  attribute = ProtoField.uint16("airdma.attribute", "Message", base.DEC, names),
  receiver = ProtoField.uint32("airdma.receiver", "Receiver", base.HEX),
  version = ProtoField.uint8("airdma.version", "Version"),
  asks = ProtoField.bool("airdma.hello.asks", "An answer is wanted", 8, nil, 0x80),
  long_payload = ProtoField.uint16("airdma.hello.long_payload", "Takes packets with so much payload", base.DEC),
  features = ProtoField.uint64("airdma.hello.features", "Features", base.HEX),
  selective = ProtoField.bool("airdma.hello.selective", "Selective repeat"),
  buffers = ProtoField.bool("airdma.hello.buffers", "Tells of its buffers"),
  sack = ProtoField.bool("airdma.hello.sack", "Says by ACKs what is missing"),
  bundles = ProtoField.bool("airdma.hello.bundles", "Takes bundles"),
  long_reads = ProtoField.bool("airdma.hello.long_reads", "Answers READs in long packets"),
  on_air = ProtoField.bool("airdma.hello.reports", "Is on the air: prefers reports"),
  pieces = ProtoField.bool("airdma.hello.pieces", "Takes packets in pieces"),
  equal_lengths = ProtoField.bool("airdma.hello.equal_lengths", "Takes messages in packets of one length"),
  sender = ProtoField.uint32("airdma.sender", "Sender", base.HEX),
  instance = ProtoField.uint64("airdma.instance", "Instance", base.HEX),
  answers = ProtoField.uint64("airdma.hello.answers", "Answers instance", base.HEX),
  nonce = ProtoField.uint64("airdma.hello.nonce", "Nonce", base.HEX),
  echo = ProtoField.uint64("airdma.hello.echo", "Answers nonce", base.HEX),
  last = ProtoField.uint32("airdma.hello.number", "Last report"),
  from = ProtoField.uint64("airdma.report.from", "Instance of the sender", base.HEX),
  number = ProtoField.uint32("airdma.report.number", "Number"),
  ping = ProtoField.uint32("airdma.report.ping", "Ping"),
  pong = ProtoField.uint32("airdma.report.pong", "Pong"),
  held = ProtoField.uint32("airdma.report.held_us", "Held (us)"),
  received = ProtoField.uint64("airdma.report.received_bytes", "Bytes received"),
  missed = ProtoField.uint32("airdma.report.missed_packets", "Packets missed"),
  marked = ProtoField.uint32("airdma.report.marked_bytes", "Bytes with congestion marks"),
  socket = ProtoField.uint32("airdma.report.socket_bytes", "Bytes in the socket buffer"),
  socket_max = ProtoField.uint32("airdma.report.socket_bytes_max", "Bytes that it holds"),
  application = ProtoField.uint32("airdma.report.application_bytes", "Bytes that wait for the application"),
  application_max = ProtoField.uint32("airdma.report.application_bytes_max", "Bytes that may"),
  at = ProtoField.uint32("airdma.report.at_us", "Since the start (us)"),
  qpn = ProtoField.uint24("airdma.record.qpn", "Queue pair", base.HEX),
  expected = ProtoField.uint24("airdma.record.expected", "Expected PSN", base.DEC),
  first = ProtoField.uint24("airdma.range.first", "Missing from PSN", base.DEC),
  packets = ProtoField.uint24("airdma.range.packets", "Packets", base.DEC),
  seth_first = ProtoField.uint16("airdma.seth.first", "Missing from, behind what is acknowledged", base.DEC),
  seth_packets = ProtoField.uint16("airdma.seth.packets", "Packets", base.DEC),
  lreth_payload = ProtoField.uint16("airdma.lreth.payload", "Payload of each answer but the last", base.DEC),
  padding = ProtoField.uint16("airdma.padding", "Bytes of padding", base.DEC),
  piece_opcode = ProtoField.uint8("airdma.piece.opcode", "Opcode of the packet", base.HEX),
  piece_last = ProtoField.bool("airdma.piece.last", "The packet ends here", 8, nil, 0x80),
  piece_offset = ProtoField.uint16("airdma.piece.offset", "Offset behind the BTH of the packet", base.DEC),
  piece_bytes = ProtoField.uint16("airdma.piece.bytes", "Bytes of the packet", base.DEC),
  token = ProtoField.bytes("airdma.probe.token", "Token"),
  probe_nonce = ProtoField.bytes("airdma.probe.nonce", "Nonce"),
  has_keys = ProtoField.bool("airdma.key.has_keys", "The sender has the keys", 8, nil, 0x40),
  key_sender = ProtoField.uint24("airdma.key.sender", "Sender's queue pair", base.HEX),
  key_receiver = ProtoField.uint24("airdma.key.receiver", "Receiver's queue pair", base.HEX),
  public_key = ProtoField.bytes("airdma.key.public", "Public key"),
  seen_key = ProtoField.bytes("airdma.key.seen", "The receiver's, as the sender has it"),
  counter = ProtoField.uint64("airdma.sealed.counter", "Counter", base.DEC),
  tag = ProtoField.bytes("airdma.sealed.tag", "Tag"),
  segment = ProtoField.uint16("airdma.bundle.segment", "Segment length", base.DEC),
  count = ProtoField.uint8("airdma.bundle.packets", "Packets", base.DEC),
  opcode = ProtoField.uint8("airdma.bundle.opcode", "Opcode", base.HEX),
  dest = ProtoField.uint24("airdma.bundle.qpn", "Queue pair", base.HEX),
  psn = ProtoField.uint24("airdma.bundle.psn", "PSN", base.DEC),
  record_qkey = ProtoField.uint32("airdma.write.qkey", "Q_Key", base.HEX),
  record_source = ProtoField.uint24("airdma.write.source", "Sender's queue pair", base.HEX),
  record_address = ProtoField.uint64("airdma.write.address", "Address", base.HEX),
  record_key = ProtoField.uint32("airdma.write.key", "Key", base.HEX),
  record_length = ProtoField.uint32("airdma.write.length", "Length of the message", base.DEC),
  record_id = ProtoField.uint32("airdma.write.id", "Message", base.DEC),
  record_offset = ProtoField.uint32("airdma.write.offset", "Offset", base.DEC),
  record_unit = ProtoField.uint16("airdma.write.unit", "Unit", base.DEC),
  record_send = ProtoField.bool("airdma.write.send", "SEND"),
  record_round = ProtoField.uint8("airdma.write.round", "Round", base.DEC),
  record_token = ProtoField.uint64("airdma.write.token", "Token", base.HEX),
  record_nonce = ProtoField.uint64("airdma.write.nonce", "Nonce", base.HEX),
  read = ProtoField.uint8("airdma.read", "What", base.DEC, { [0] = "request", [1] = "challenge", [2] = "refused" }),
  read_qkey = ProtoField.uint32("airdma.read.qkey", "Q_Key of the requester", base.HEX),
  read_first = ProtoField.uint32("airdma.read.first", "First unit", base.DEC),
  read_units = ProtoField.uint32("airdma.read.units", "Units", base.DEC),
  record_imm = ProtoField.bytes("airdma.write.imm", "Immediate data"),
  record_socket = ProtoField.uint32("airdma.write.socket", "Bytes in the socket", base.DEC),
  record_socket_max = ProtoField.uint32("airdma.write.socket_max", "Capacity of the socket", base.DEC),
  record_entries = ProtoField.uint24("airdma.write.entries", "Free entries", base.DEC),
  answer = ProtoField.uint8("airdma.answer", "Answer", base.DEC, {
    [0] = "arrives", [1] = "whole", [2] = "not ready", [3] = "refused", [4] = "too long", [5] = "ended",
  }),
  answer_base = ProtoField.uint32("airdma.answer.base", "First missing unit", base.DEC),
  answer_map = ProtoField.bytes("airdma.answer.map", "Units from there on"),
}
air.fields = f

local BTH, AETH, RETH, DETH, MAD, ICRC = 12, 4, 16, 8, 256, 4
local LRETH = 4
local BUNDLE_HEADER, BUNDLE_PACKETS = 8, 64
local RCETH, VERSION_RECORD = 12, 1
local READ_REQUEST, ACKNOWLEDGE, RECORD, ANSWER, ECHO, READ = 0x0c, 0x11, 0xc0, 0xc1, 0xc2, 0xc3
local TOKEN, ANSWER_LEN, READ_LEN = 8, 56, 64
local BUNDLE, SEALED, PIECE, PROBE = 0xd9, 0xda, 0xdb, 0xdc
local COUNTER, TAG = 8, 16
local PIECE_HEADER, SECRET = 4, 16
local payloads = Field.new("udp.payload")
local port = Field.new("udp.dstport")

local function record(mad, at, tree)
  local ranges = mad(at + 3, 1):uint()
  local len = 8 + 6 * ranges
  if at + len > MAD then return MAD end
  local branch = tree:add(air, mad(at, len), "Record")
  branch:add(f.qpn, mad(at, 3))
  branch:add(f.expected, mad(at + 4, 3))
  for range = 0, ranges - 1 do
    local place = at + 8 + 6 * range
    branch:add(f.first, mad(place, 3))
    branch:add(f.packets, mad(place + 3, 3))
  end
  return at + len
end

-- An ACK that says what is missing.
local function sack(buffer, pinfo, root)
  local len = buffer:len() - BTH - AETH - ICRC
  if len < 4 then return end
  local seth = buffer(BTH + AETH, len):tvb()
  local ranges = seth(1, 1):uint()
  if seth(0, 1):uint() ~= 1 or len ~= 4 + 4 * ranges then return end
  local tree = root:add(air, seth())
  tree:add(f.version, seth(0, 1))
  for range = 1, ranges do
    tree:add(f.seth_first, seth(4 * range, 2))
    tree:add(f.seth_packets, seth(4 * range + 2, 2))
  end
  pinfo.cols.info:append(" airdma SACK")
end

-- A READ request that says what its answers carry.
local function long_read(buffer, pinfo, root)
  if buffer:len() ~= BTH + RETH + LRETH + ICRC then return end
  local lreth = buffer(BTH + RETH, LRETH):tvb()
  if lreth(0, 1):uint() ~= 1 and lreth(0, 1):uint() ~= 2 then return end
  local tree = root:add(air, lreth())
  tree:add(f.version, lreth(0, 1))
  tree:add(f.lreth_payload, lreth(2, 2))
  pinfo.cols.info:append(" airdma long READ")
end

-- A packet that is as long as the others of its message.
local function padded(buffer, pinfo, root)
  local padding = buffer(buffer:len() - ICRC - 2, 2):uint()
  if padding < 4 or padding > buffer:len() - BTH - ICRC then return end
  local tree = root:add(air, buffer(buffer:len() - ICRC - padding, padding), "Padding")
  tree:add(f.padding, buffer(buffer:len() - ICRC - 2, 2))
  pinfo.cols.info:append(" airdma padded")
end

-- A packet of which all but the BTH is encrypted.
local function sealed(buffer, pinfo, root)
  local counter = buffer:len() - COUNTER - TAG - ICRC
  if counter < BTH + 4 then return end
  local tree = root:add(air, buffer(), "Sealed packet")
  tree:add(f.dest, buffer(5, 3))
  tree:add(f.psn, buffer(9, 3))
  tree:add(f.counter, buffer(counter, COUNTER))
  tree:add(f.tag, buffer(counter + COUNTER, TAG))
  pinfo.cols.info:append(" airdma sealed")
end

-- Part of a message that a datagram writes into memory.
local function write_record(buffer, pinfo, root)
  local len = BTH + DETH + RETH + RCETH
  if buffer:len() < len + ICRC or buffer(len - 2, 1):bitfield(0, 4) ~= VERSION_RECORD then return end
  local tree = root:add(air, buffer(), "Write-Record")
  tree:add(f.dest, buffer(5, 3))
  tree:add(f.record_qkey, buffer(12, 4))
  tree:add(f.record_source, buffer(17, 3))
  tree:add(f.record_address, buffer(20, 8))
  tree:add(f.record_key, buffer(28, 4))
  tree:add(f.record_length, buffer(32, 4))
  tree:add(f.record_id, buffer(36, 4))
  tree:add(f.record_offset, buffer(40, 4))
  tree:add(f.record_unit, buffer(44, 2))
  local flags = buffer(len - 2, 1)
  tree:add(f.record_send, flags, flags:bitfield(5, 1) == 1)
  if flags:bitfield(6, 1) == 1 and buffer:len() >= len + TOKEN + ICRC then
    tree:add(f.record_round, buffer(len - 1, 1))
    tree:add(f.record_token, buffer(len, TOKEN))
    len = len + TOKEN
  end
  if flags:bitfield(4, 1) == 1 and buffer:len() >= len + TOKEN + ICRC then
    tree:add(f.record_nonce, buffer(len, TOKEN))
    len = len + TOKEN
  end
  if flags:bitfield(7, 1) == 1 and buffer:len() >= len + 4 + ICRC then
    tree:add(f.record_imm, buffer(len, 4))
  end
  pinfo.cols.info:append(" airdma Write-Record")
end

-- The answer to such a packet.
local function echo(buffer, pinfo, root)
  local len = BTH + DETH + 20
  if buffer:len() ~= len + ICRC or buffer(len - 4, 1):bitfield(0, 4) ~= VERSION_RECORD then return end
  local tree = root:add(air, buffer(), "Write-Record answer")
  tree:add(f.dest, buffer(5, 3))
  tree:add(f.record_qkey, buffer(12, 4))
  tree:add(f.record_source, buffer(17, 3))
  tree:add(f.record_id, buffer(20, 4))
  tree:add(f.record_offset, buffer(24, 4))
  if buffer(len - 4, 1):bitfield(6, 1) == 1 then
    tree:append_text(": question")
    pinfo.cols.info:append(" airdma Write-Record question")
    return
  end
  tree:add(f.record_socket, buffer(28, 4))
  tree:add(f.record_socket_max, buffer(32, 4))
  if buffer(len - 4, 1):bitfield(7, 1) == 1 then tree:add(f.record_entries, buffer(len - 3, 3)) end
  pinfo.cols.info:append(" airdma Write-Record answer")
end

-- A request to read memory by datagrams, or an answer that is no memory.
local function read(buffer, pinfo, root)
  if buffer:len() < READ_LEN + ICRC or buffer(62, 1):bitfield(0, 4) ~= VERSION_RECORD then return end
  local ranges = buffer(63, 1):uint()
  if buffer:len() ~= READ_LEN + 8 * ranges + ICRC then return end
  local tree = root:add(air, buffer(), "Read of a record")
  tree:add(f.dest, buffer(5, 3))
  tree:add(f.record_qkey, buffer(12, 4))
  tree:add(f.record_source, buffer(17, 3))
  tree:add(f.record_address, buffer(20, 8))
  tree:add(f.record_key, buffer(28, 4))
  tree:add(f.record_length, buffer(32, 4))
  tree:add(f.record_id, buffer(36, 4))
  tree:add(f.record_nonce, buffer(40, TOKEN))
  tree:add(f.record_token, buffer(48, TOKEN))
  tree:add(f.read_qkey, buffer(56, 4))
  tree:add(f.record_unit, buffer(60, 2))
  tree:add(f.read, buffer(62, 1), buffer(62, 1):bitfield(4, 4))
  for range = 0, ranges - 1 do
    tree:add(f.read_first, buffer(READ_LEN + 8 * range, 4))
    tree:add(f.read_units, buffer(READ_LEN + 8 * range + 4, 4))
  end
  pinfo.cols.info:append(" airdma read of a record")
end

-- Which units of an acknowledged message arrived.
local function answer(buffer, pinfo, root)
  if buffer:len() ~= ANSWER_LEN + ICRC or buffer(36, 1):bitfield(0, 4) ~= VERSION_RECORD then return end
  local tree = root:add(air, buffer(), "Answer to a message")
  tree:add(f.dest, buffer(5, 3))
  tree:add(f.record_source, buffer(17, 3))
  tree:add(f.record_id, buffer(20, 4))
  tree:add(f.record_token, buffer(24, TOKEN))
  tree:add(f.answer_base, buffer(32, 4))
  tree:add(f.answer, buffer(36, 1), buffer(36, 1):bitfield(4, 4))
  tree:add(f.record_round, buffer(37, 1))
  tree:add(f.answer_map, buffer(40, 16))
  pinfo.cols.info:append(" airdma answer to a message")
end

-- A part of a packet that is too long for the path.
local function piece(buffer, pinfo, root)
  local len = buffer:len() - BTH - PIECE_HEADER - ICRC
  if len < 1 or buffer(BTH, 1):uint() == PIECE then return end
  local tree = root:add(air, buffer(), "Piece")
  tree:add(f.dest, buffer(5, 3))
  tree:add(f.psn, buffer(9, 3))
  tree:add(f.piece_opcode, buffer(BTH, 1))
  tree:add(f.piece_last, buffer(BTH + 1, 1))
  tree:add(f.piece_offset, buffer(BTH + 2, 2))
  tree:add(f.piece_bytes, buffer(BTH + PIECE_HEADER, len), len)
  local from = buffer(BTH + 2, 2):uint()
  local last = buffer(BTH + 1, 1):uint() >= 0x80 and ", the last" or ""
  pinfo.cols.info:append(string.format(" airdma piece, bytes %d to %d%s", from, from + len - 1, last))
end

-- A packet that asks whether a process of the same host receives it.
local function probe(buffer, pinfo, root)
  if buffer:len() ~= BTH + 2 * SECRET + ICRC then return end
  local tree = root:add(air, buffer(), "Probe of the same host")
  tree:add(f.dest, buffer(5, 3))
  tree:add(f.token, buffer(BTH, SECRET))
  tree:add(f.probe_nonce, buffer(BTH + SECRET, SECRET))
  pinfo.cols.info:append(" airdma probe of the same host")
end

-- Packets that share a datagram.
local function bundle(buffer, pinfo, root)
  local len = buffer:len() - BUNDLE_HEADER
  local segment, count = buffer(2, 2):uint(), buffer(4, 1):uint()
  if buffer(1, 1):uint() ~= 0 or segment < BTH + ICRC or count > BUNDLE_PACKETS then return end
  if len <= (count - 1) * segment or len > count * segment then return end
  local tree = root:add(air, buffer(), "Bundle")
  tree:add(f.segment, buffer(2, 2))
  tree:add(f.count, buffer(4, 1))
  for at = BUNDLE_HEADER, buffer:len() - BTH - ICRC, segment do
    local branch = tree:add(air, buffer(at, math.min(segment, buffer:len() - at)), "Packet")
    branch:add(f.opcode, buffer(at, 1))
    branch:add(f.dest, buffer(at + 5, 3))
    branch:add(f.psn, buffer(at + 9, 3))
  end
  pinfo.cols.info:append(" airdma bundle of " .. count)
end

function air.dissector(_, pinfo, root)
  local payload = payloads()
  if not payload or port().value ~= 4791 then return end
  local buffer = payload.range:tvb()
  if buffer:len() > BUNDLE_HEADER and buffer(0, 1):uint() == BUNDLE then return bundle(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == SEALED then return sealed(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == RECORD then return write_record(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == ECHO then return echo(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == ANSWER then return answer(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == READ then return read(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == PIECE then return piece(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == PROBE then return probe(buffer, pinfo, root) end
  if buffer:len() > BTH + ICRC and buffer(1, 1):bitfield(4, 4) == 1 then return padded(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == ACKNOWLEDGE then return sack(buffer, pinfo, root) end
  if buffer:len() > BTH and buffer(0, 1):uint() == READ_REQUEST then return long_read(buffer, pinfo, root) end
  if buffer:len() < BTH + DETH + MAD or buffer(5, 3):uint() ~= 1 then return end
  local mad = buffer(BTH + DETH, MAD):tvb()
  if mad(1, 1):uint() ~= 0x4f or mad(37, 3):uint() ~= 0x026144 then return end
  local tree = root:add(air, mad())
  local attribute = mad(16, 2):uint()
  tree:add(f.attribute, mad(16, 2))
  tree:add(f.receiver, mad(28, 4))
  tree:add(f.version, mad(40, 1))
  if attribute == 1 then
    tree:add(f.asks, mad(41, 1))
    tree:add(f.long_payload, mad(42, 2))
    tree:add(f.features, mad(44, 8))
    tree:add(f.selective, mad(51, 1), mad(51, 1):bitfield(7, 1) == 1)
    tree:add(f.buffers, mad(51, 1), mad(51, 1):bitfield(6, 1) == 1)
    tree:add(f.sack, mad(51, 1), mad(51, 1):bitfield(5, 1) == 1)
    tree:add(f.bundles, mad(51, 1), mad(51, 1):bitfield(4, 1) == 1)
    tree:add(f.long_reads, mad(51, 1), mad(51, 1):bitfield(3, 1) == 1)
    tree:add(f.on_air, mad(51, 1), mad(51, 1):bitfield(2, 1) == 1)
    tree:add(f.pieces, mad(51, 1), mad(51, 1):bitfield(1, 1) == 1)
    tree:add(f.equal_lengths, mad(51, 1), mad(51, 1):bitfield(0, 1) == 1)
    tree:add(f.sender, mad(52, 4))
    tree:add(f.instance, mad(56, 8))
    tree:add(f.answers, mad(64, 8))
    tree:add(f.nonce, mad(72, 8))
    tree:add(f.echo, mad(80, 8))
    tree:add(f.last, mad(88, 4))
  elseif attribute == 2 then
    tree:add(f.instance, mad(44, 8))
    tree:add(f.from, mad(8, 8))
    for index, field in ipairs({ f.number, f.ping, f.pong, f.held }) do
      tree:add(field, mad(48 + 4 * index, 4))
    end
    tree:add(f.received, mad(68, 8))
    for index, field in ipairs({ f.missed, f.marked, f.socket, f.socket_max, f.application, f.application_max, f.sender, f.at }) do
      tree:add(field, mad(72 + 4 * index, 4))
    end
    local at = 108
    for _ = 1, mad(41, 1):uint() do
      if at + 8 > MAD then break end
      at = record(mad, at, tree)
    end
  elseif attribute == 3 then
    tree:add(f.asks, mad(41, 1))
    tree:add(f.has_keys, mad(41, 1))
    tree:add(f.key_sender, mad(45, 3))
    tree:add(f.key_receiver, mad(49, 3))
    tree:add(f.public_key, mad(52, 32))
    tree:add(f.seen_key, mad(84, 32))
  end
  pinfo.cols.info:append(" airdma " .. (names[attribute] or "?"))
end

register_postdissector(air)
